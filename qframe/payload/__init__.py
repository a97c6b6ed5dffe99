"""The envelope on the wire, and what is done to its bytes."""
