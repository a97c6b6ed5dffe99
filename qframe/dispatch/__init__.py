"""The fluent calls: dispatch, bulk, chain, batch, after_commit; and the status of a job."""
