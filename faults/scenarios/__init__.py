"""The scenarios, by what is broken."""
