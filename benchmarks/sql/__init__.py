"""What the groups of SQL servers share: the servers, the measures, the bare statements."""
