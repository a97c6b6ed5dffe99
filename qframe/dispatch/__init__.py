"""The fluent calls: dispatch, bulk, chain, batch, after_commit, and what became of a job."""
