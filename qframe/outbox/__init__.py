"""The outbox: steps for a backend elsewhere, kept in the caller's transaction and handed on."""
