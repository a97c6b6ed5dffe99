"""The outbox: steps for another backend, stored in the caller's transaction and then relayed."""
