"""What a power limiter needs from a driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from energyopt.core.units import Hertz, Joules, Watts


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Power limits of one device as read now.

    ``requested`` is what was last asked for; ``enforced`` the lowest of all limiters, out-of-band ones included.
    ``low`` and ``high`` bound what may be requested; ``max_clock`` is the highest SM clock, ``default`` the limit after
    the driver starts (None: not stated). ``persistent`` is False where the driver forgets limits when its last user
    leaves (None: not stated).
    """

    requested: Watts
    enforced: Watts
    low: Watts
    high: Watts
    max_clock: Hertz | None = None
    default: Watts | None = None
    persistent: bool | None = None


@dataclass(frozen=True, slots=True)
class DriverLife:
    """Tells one life of a driver from the next, in which it has forgotten every limit.

    ``load`` names one loading of the kernel module. ``energy`` is a counter that begins anew with the driver's state:
    it also tells of resets that leave the module loaded. None: not known.
    """

    load: str | None = None
    energy: Joules | None = None

    def ended_before(self, later: DriverLife) -> bool:
        """True if the driver lost its state between the two readings, as far as they tell."""
        reloaded = self.load is not None and later.load is not None and self.load != later.load
        reset = self.energy is not None and later.energy is not None and later.energy < self.energy
        return reloaded or reset

    def followed_by(self, later: DriverLife) -> DriverLife:
        """The later reading, with what it could not tell taken from this one."""
        load = self.load if later.load is None else later.load
        return DriverLife(load, self.energy if later.energy is None else later.energy)


class LimitBackend(Protocol):
    """Reads and sets limits of devices by identity. Every method raises ControlError with the driver's words."""

    def limits(self, device: str) -> DeviceLimits: ...

    def set_cap(self, device: str, cap: Watts) -> None: ...

    def clocks(self, device: str) -> str | None:
        """The clock settings now, in words that only ``unlock_clock`` reads; None where the driver does not tell."""
        ...

    def lock_clock(self, device: str, ceiling: Hertz) -> None:
        """Keep the SM clock at or below ``ceiling``."""
        ...

    def unlock_clock(self, device: str, found: str | None) -> None:
        """Go back to what ``clocks`` said; to the driver's own choice of clocks for None."""
        ...

    def life(self, device: str) -> DriverLife:
        """The life of the driver; a driver that does not answer has an unknown one, and that is no error."""
        ...

    def hold(self, device: str) -> None:
        """Stay a user of the device until ``let_go``, where its driver would otherwise forget limits. Idempotent."""
        ...

    def let_go(self, device: str) -> None:
        """Undo ``hold``; never fails."""
        ...

    def forbidden(self, device: str) -> str | None:
        """Why this process may not change limits, with the command that would help; None if it may. Changes nothing."""
        ...
