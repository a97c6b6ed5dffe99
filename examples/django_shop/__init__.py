"""A shop on Django: orders are placed in a transaction, and what follows is queued with them."""
