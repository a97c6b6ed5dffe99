"""A restaurant's booking page that sends its mail in the background."""
