"""RabbitMQ: jobs in its quorum queues. Needs `pip install 'qframe[rabbitmq]'`."""

from importlib.util import find_spec

from qframe.exceptions import ConfigurationError

if find_spec("amqp") is None:
    raise ConfigurationError(
        "the driver rabbitmq needs the package amqp: pip install 'qframe[rabbitmq]'"
    )
