"""A Flask application that counts words in the background, with the dashboard mounted."""
