"""The project: settings, addresses, and the servers' entry points."""
