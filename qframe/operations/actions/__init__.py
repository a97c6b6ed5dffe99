"""Actions: what people may do with queues, jobs and workers."""
