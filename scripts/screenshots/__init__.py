"""The screenshots that docs/operate/web.md shows, made from a shop that runs."""
