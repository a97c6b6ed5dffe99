"""What a driver for a message broker needs: a backend over deliveries that are acknowledged."""

from qframe.drivers.broker.backend import BrokerBackend
from qframe.drivers.broker.blocking import BlockingReceive
from qframe.drivers.broker.message import BrokerJob, BrokerMessage

__all__ = ["BlockingReceive", "BrokerBackend", "BrokerJob", "BrokerMessage"]
