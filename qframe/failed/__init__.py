"""Failed jobs: their causes, filters, and retry."""
