"""The beanstalkd driver: a tube for each queue, whole payloads as bodies."""

from qframe.drivers.beanstalkd.queue import BeanstalkdQueue

__all__ = ["BeanstalkdQueue"]
