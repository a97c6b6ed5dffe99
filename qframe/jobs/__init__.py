"""The base of what users write: job classes and functions, their options, fields and registry."""
