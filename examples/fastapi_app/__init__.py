"""A FastAPI application that makes digests in the background, with the dashboard mounted."""
