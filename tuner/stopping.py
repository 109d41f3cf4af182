"""That somebody wants a study to stop: how it is asked for, and how it goes up to whoever works on the study."""

from __future__ import annotations

from energyopt.core.study import StudyState

STOPPING = frozenset((StudyState.CANCELLING, StudyState.CANCELLED, StudyState.PAUSING))


class StopAskedError(Exception):
    """Somebody asked to pause or cancel the study; nothing is wrong."""
