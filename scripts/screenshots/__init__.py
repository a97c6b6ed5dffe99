"""The screenshots that docs/web.md shows, made from a shop that runs."""
