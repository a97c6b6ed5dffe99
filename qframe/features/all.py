"""All features, in the order in which they add to a step.

The first decides whether a message is its job's; batches depend on chains.
"""

from __future__ import annotations

from qframe.features.batch import BatchFeature
from qframe.features.chain import ChainFeature
from qframe.features.debounce import DebounceFeature
from qframe.features.failover import FailoverFeature
from qframe.features.flow import FlowFeature
from qframe.features.group import GroupFeature
from qframe.features.once import OnceFeature
from qframe.features.scheduled import ScheduledFeature
from qframe.features.status import StatusFeature
from qframe.features.steps import StepsFeature
from qframe.features.unique import UniqueFeature

FEATURES = (
    FailoverFeature(), ChainFeature(), BatchFeature(), UniqueFeature(), DebounceFeature(),
    OnceFeature(), StatusFeature(), ScheduledFeature(), StepsFeature(), FlowFeature(),
    GroupFeature(),
)  # fmt: skip
