"""Operations: what people see of queues, workers and failed jobs, and what they do with them."""
