"""Limits for the duration of a ``with`` block, held by a helper that survives this process.

The block's end releases the lease; the end of the process, however it comes, closes the connection, and the helper puts
back what was found. A process that hangs stops renewing, with the same result.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Seconds

from .client import Channel, Connect, HelperGoneError
from .protocol import Acquire, Adjust, Release, Renew

log = logging.getLogger(__name__)

LIFETIME = Seconds(10.0)
"""A holder that hangs has its limits for this long."""
RENEWALS = 4
"""In each lifetime, so that a slow helper or a paused machine does not end it."""


class HeldLease:
    """Devices under limits now, renewed by a thread.

    If the helper dies it has put everything back, or its successor does; the lease is then taken anew, with the limits
    asked for last. ``lost`` says why it is not held at the moment, None where it is.
    """

    def __init__(
        self, devices: Sequence[str], power: PowerConfig, connect: Connect, lifetime: Seconds, clock: Clock
    ) -> None:
        self._devices = tuple(devices)
        self._power = power
        self._connect = connect
        self._lifetime = lifetime
        self._clock = clock
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._channel: Channel | None = None
        self._lease: Mapping[str, Any] = {}
        self._deadline = clock.now()
        self.lost: str | None = None
        self._acquire()
        self._thread = threading.Thread(target=self._renew_until_ended, name="power-lease", daemon=True)
        self._thread.start()

    @property
    def devices(self) -> tuple[str, ...]:
        return self._devices

    @property
    def power(self) -> PowerConfig:
        """The limits asked for last."""
        return self._power

    @property
    def remaining(self) -> Seconds:
        """Until the helper would put back what it found if it heard nothing more; 0 while the lease is lost."""
        return Seconds(0.0 if self.lost is not None else max(0.0, self._deadline - self._clock.now()))

    @property
    def foreign(self) -> tuple[str, ...]:
        """Devices whose limit someone else has changed since; they are left alone."""
        return tuple(self._lease.get("foreign", ()))

    def adjust(self, power: PowerConfig) -> None:
        """Other limits, now. Raises ControlError if a device refuses; the limits of before hold then.

        While the lease is lost the new limits are only remembered, and HelperGoneError says so.
        """
        with self._lock:
            before, self._power = self._power, power
            try:
                if self._channel is None:
                    raise HelperGoneError(self.lost or "the lease is not held")
                self._keep(self._channel.call(Adjust(lease=self._id, cap=power.cap, sm_clock=power.sm_clock)))
            except HelperGoneError as error:
                self._lose(error)
                raise
            except ControlError:
                self._power = before
                raise

    def renew(self) -> None:
        """What the thread does in turn: renew, or take anew what was lost. Never raises; ``lost`` tells."""
        with self._lock:
            try:
                if self._channel is None:
                    self._acquire()
                    log.warning("The limits of %s are held again.", ", ".join(self._devices))
                else:
                    self._keep(self._channel.call(Renew(lease=self._id)))
            except ControlError as error:
                self._lose(error)

    def end(self) -> None:
        """Put back what was found. Raises ControlError if a driver refused; the helper goes on trying."""
        self._ended.set()
        self._thread.join()
        with self._lock:
            channel, self._channel = self._channel, None
            if channel is None:
                return
            try:
                for line in channel.call(Release(lease=self._id)).get("said", ()):
                    log.info("%s", line)
            except HelperGoneError as error:
                log.warning("The helper ended before the lease; it or its successor puts back: %s", error)
            finally:
                channel.close()

    @property
    def _id(self) -> str:
        return str(self._lease["id"])

    def _acquire(self) -> None:
        power, channel = self._power, self._connect()
        try:
            request = Acquire(devices=self._devices, cap=power.cap, sm_clock=power.sm_clock, lifetime=self._lifetime)
            self._keep(channel.call(request))
        except ControlError:
            channel.close()
            raise
        self._channel, self.lost = channel, None

    def _keep(self, reply: Mapping[str, Any]) -> None:
        self._lease = reply["lease"]
        self._deadline = Seconds(self._clock.now() + float(self._lease["remaining"]))

    def _lose(self, error: ControlError) -> None:
        if self.lost is None:
            log.warning("The limits of %s are not held: %s", ", ".join(self._devices), error)
        self.lost = str(error)
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(self._lifetime / RENEWALS):
            self.renew()


class LeasedPower:
    """Applies limits to ``devices`` through the helper that ``connect`` reaches."""

    def __init__(
        self,
        devices: Sequence[str],
        connect: Connect,
        *,
        lifetime: Seconds = LIFETIME,
        clock: Clock | None = None,
    ) -> None:
        self._devices = tuple(devices)
        self._connect = connect
        self._lifetime = lifetime
        self._clock = clock or MonotonicClock()

    @contextmanager
    def applied(self, power: PowerConfig) -> Iterator[None]:
        """Apply ``power`` to every device, or to none. Without a limit in it nothing is touched.

        Raises ControlError before any change if a device cannot take it or is held by someone, naming the range, the
        missing permission or the holder; and after putting back if a limit is not enforced.
        """
        if power.cap is None and power.sm_clock is None:
            yield
            return
        with self.held(power):
            yield

    @contextmanager
    def held(self, power: PowerConfig) -> Iterator[HeldLease]:
        """As ``applied``, for a holder that will change its limits. Raises ControlError for no limits."""
        lease = HeldLease(self._devices, power, self._connect, self._lifetime, self._clock)
        try:
            yield lease
        finally:
            lease.end()
