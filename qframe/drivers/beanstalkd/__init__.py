"""The beanstalkd driver: a tube for each queue, whole payloads as bodies."""

from qframe.drivers.beanstalkd.backend import BeanstalkdBackend

__all__ = ["BeanstalkdBackend"]
