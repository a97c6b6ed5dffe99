"""qframe: Laravel's queue for Python."""

from qframe import events
from qframe.dispatch import (
    PendingDispatch,
    bulk,
    dispatch,
    dispatch_if,
    dispatch_sync,
    dispatch_unless,
)
from qframe.exceptions import *  # noqa: F403 (every exception is public)
from qframe.functions import queueable
from qframe.manager import QueueManager
from qframe.queueable import Queueable
