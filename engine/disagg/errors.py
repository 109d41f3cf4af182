"""Why a hand-over did not happen. The decode side computes instead, or ends the request, as its policy says."""

from __future__ import annotations

from enum import StrEnum

from energyopt.core.errors import EngineError


class Reason(StrEnum):
    """``GONE``: lease unknown, ended or expired. ``PROMPT``: it is another prompt's. ``PROTOCOL``: nonsense arrived."""

    GONE = "gone"
    LAYOUT = "layout"
    PROMPT = "prompt"
    CORRUPT = "corrupt"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    PROTOCOL = "protocol"
    CANCELLED = "cancelled"


class HandOverError(EngineError):
    """Blocks that did not come. ``reason`` is what metrics count."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
