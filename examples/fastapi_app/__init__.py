"""A FastAPI application that makes digests in the background, with the web view mounted."""
