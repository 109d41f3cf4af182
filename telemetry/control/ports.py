"""What a power limiter needs from a driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from energyopt.core.units import Hertz, Watts


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Power limits of one device as read now.

    ``requested`` is what was last asked for; ``enforced`` the lowest of all limiters, out-of-band ones included.
    ``low`` and ``high`` bound what may be requested; ``max_clock`` is the highest SM clock (None: not stated).
    """

    requested: Watts
    enforced: Watts
    low: Watts
    high: Watts
    max_clock: Hertz | None = None


class LimitBackend(Protocol):
    """Reads and sets limits of devices by identity. Every method raises ControlError with the driver's words."""

    def limits(self, device: str) -> DeviceLimits: ...

    def set_cap(self, device: str, cap: Watts) -> None: ...

    def lock_clock(self, device: str, ceiling: Hertz) -> None:
        """Keep the SM clock at or below ``ceiling``. A driver does not tell whether one is locked."""
        ...

    def unlock_clock(self, device: str) -> None: ...

    def forbidden(self, device: str) -> str | None:
        """Why this process may not change limits, with the command that would help; None if it may. Changes nothing."""
        ...
