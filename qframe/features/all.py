"""All features, in the order in which they add to a step: a chain says first whether it goes on."""

from __future__ import annotations

from qframe.features.batch import BatchFeature
from qframe.features.chain import ChainFeature
from qframe.features.debounce import DebounceFeature
from qframe.features.reserved import Feature
from qframe.features.scheduled import ScheduledFeature
from qframe.features.status import StatusFeature
from qframe.features.unique import UniqueFeature

OTHERS: list[Feature] = []
"""Those that another library's results need; they say nothing of any other job."""
FEATURES: tuple[Feature, ...] = (
    ChainFeature(), BatchFeature(), UniqueFeature(), DebounceFeature(), StatusFeature(),
    ScheduledFeature(),
)  # fmt: skip
