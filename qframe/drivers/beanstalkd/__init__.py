"""The beanstalkd driver: a tube for each queue, whole payloads as bodies."""
