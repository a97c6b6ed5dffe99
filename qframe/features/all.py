"""All features, in the order in which they add to a step: batches depend on chains."""

from __future__ import annotations

from qframe.features.batch import BatchFeature
from qframe.features.chain import ChainFeature
from qframe.features.debounce import DebounceFeature
from qframe.features.reserved import Feature
from qframe.features.scheduled import ScheduledFeature
from qframe.features.status import StatusFeature
from qframe.features.unique import UniqueFeature

OTHERS: list[Feature] = []
"""Features for results of another library; they ignore all other jobs."""
FEATURES: tuple[Feature, ...] = (
    ChainFeature(), BatchFeature(), UniqueFeature(), DebounceFeature(), StatusFeature(),
    ScheduledFeature(),
)  # fmt: skip
