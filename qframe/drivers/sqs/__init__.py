"""SQS: jobs in queues of Amazon SQS. Needs `pip install 'qframe[sqs]'`."""

from importlib.util import find_spec

from qframe.exceptions import ConfigurationError

if find_spec("botocore") is None:
    raise ConfigurationError("the driver sqs needs the package botocore: pip install 'qframe[sqs]'")
