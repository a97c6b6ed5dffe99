"""Breaks things on purpose while jobs run, and counts by a ledger what became of each."""
