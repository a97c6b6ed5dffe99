"""An app whose jobs say what they see of the ORM's connections."""
