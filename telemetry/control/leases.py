"""Who holds which device, under what limits and until when.

A lease ends by release, at its deadline, with its connection, or with the book; then what was found is put back. What
a driver refuses to take back is tried again until it does, and bars its device meanwhile.

While a lease lives its devices are looked at every few seconds. A limit that stands at the driver's default after the
driver has lost its state (its module was loaded anew, or its energy counter began anew) was forgotten and is set
again. Any other limit that is not ours was set by someone else: it is left alone, and the lease says so.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from energyopt.core.clock import Clock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Seconds, format_duration, milliwatts

from .access import Access, Peer
from .journal import Entry
from .limits import TOLERANCE, Limiter
from .ports import DriverLife

log = logging.getLogger(__name__)

LOOK_EVERY = Seconds(2.0)
"""A limit that a driver forgot is set again within this, and a refused restore is tried again after it."""
MOST_LEASES = 256


@dataclass(slots=True)
class Held:
    """One device of a lease; ``foreign``: someone else has changed its limit since."""

    entry: Entry
    life: DriverLife
    foreign: bool = False


@dataclass(slots=True)
class Lease:
    """``connection`` is the one that ends it, None where it is kept beyond its connection."""

    id: str
    peer: Peer
    connection: int | None
    power: PowerConfig
    lifetime: Seconds
    deadline: Seconds
    devices: dict[str, Held] = field(default_factory=dict)

    def document(self, now: Seconds) -> dict[str, object]:
        """As replies tell it."""
        return {
            "id": self.id,
            "user": self.peer.user,
            "pid": self.peer.pid,
            "devices": list(self.devices),
            "cap": self.power.cap,
            "sm_clock": self.power.sm_clock,
            "kept": self.connection is None,
            "remaining": max(0.0, self.deadline - now),
            "foreign": [device for device, held in self.devices.items() if held.foreign],
        }


class LeaseBook:
    """Every lease of one helper. Not for several threads. Methods raise ControlError with a sentence for the client."""

    def __init__(
        self, limiter: Limiter, clock: Clock, *, new_id: Callable[[], str] = lambda: secrets.token_hex(8)
    ) -> None:
        self._limiter = limiter
        self._clock = clock
        self._new_id = new_id
        self._leases: dict[str, Lease] = {}
        self._stuck: dict[str, Entry] = {}
        self._looked = clock.now()

    @property
    def busy(self) -> bool:
        """Whether anything is still to be put back."""
        return bool(self._leases or self._stuck)

    def documents(self) -> list[dict[str, object]]:
        now = self._clock.now()
        return [lease.document(now) for lease in self._leases.values()]

    def acquire(
        self,
        peer: Peer,
        access: Access,
        devices: Sequence[str],
        power: PowerConfig,
        lifetime: Seconds,
        connection: int | None,
    ) -> Lease:
        """Put devices under limits, all or none."""
        if power.cap is None and power.sm_clock is None:
            raise ControlError("A lease needs a cap or an SM clock.")
        if lifetime > access.longest:
            raise ControlError(f"A lease may last {format_duration(access.longest)} at most here.")
        if len(self._leases) >= MOST_LEASES:
            raise ControlError(f"{MOST_LEASES} leases are held already.")
        for device in devices:
            access.check(peer, device, power)
            self._check_free(device)
        self._limiter.recover()
        for device in devices:
            self._limiter.check(device, power)
        lease = Lease(self._new_id(), peer, connection, power, lifetime, Seconds(self._clock.now() + lifetime))
        try:
            for device in dict.fromkeys(devices):
                life = self._limiter.backend.life(device)
                lease.devices[device] = Held(self._limiter.take(device, power), life)
        except ControlError:
            self._end(lease, "not all of its devices could be taken")
            raise
        lease.deadline = Seconds(self._clock.now() + lifetime)
        self._leases[lease.id] = lease
        log.info("lease %s of %s (pid %d): %s at %s", lease.id, peer.user, peer.pid, ", ".join(lease.devices), power)
        return lease

    def adjust(self, peer: Peer, access: Access, lease_id: str, power: PowerConfig) -> Lease:
        """Other limits on the devices of a lease, all or none; renews it too."""
        lease = self._owned(peer, lease_id)
        if power.cap is None and power.sm_clock is None:
            raise ControlError("A lease needs a cap or an SM clock.")
        for device in lease.devices:
            access.check(peer, device, power)
            self._limiter.check(device, power)
        changed: list[Held] = []
        try:
            for held in self._mine(lease):
                changed.append(held)
                held.entry = self._limiter.widen(held.entry, power)
                held.entry = self._limiter.change(held.entry, power)
        except ControlError:
            self._go_back(lease, changed)
            raise
        lease.power = power
        return self.renew(peer, lease_id)

    def renew(self, peer: Peer, lease_id: str) -> Lease:
        """A new lifetime from now."""
        lease = self._owned(peer, lease_id)
        lease.deadline = Seconds(self._clock.now() + lease.lifetime)
        return lease

    def release(self, peer: Peer, lease_id: str) -> tuple[str, ...]:
        """End a lease; says what was put back. Raises ControlError where a driver refused (it is tried again)."""
        return self._told(self._end(self._owned(peer, lease_id), "released"))

    def clear(self, peer: Peer, devices: Sequence[str]) -> tuple[str, ...]:
        """End every lease of the peer (for root: of anyone) on any of ``devices``, and put back what dead ones left."""
        found = [lease for lease in self._leases.values() if set(devices) & set(lease.devices)]
        foreign = [lease for lease in found if not _may(peer, lease)]
        if foreign:
            raise ControlError(
                f"The lease on {', '.join(foreign[0].devices)} is held by {foreign[0].peer.user}; only that user and "
                "root may end it."
            )
        said = [line for lease in found for line in self._end(lease, f"cleared by {peer.user}")]
        return self._told([*said, *self._limiter.recover()])

    def connection_closed(self, connection: int) -> None:
        """The holder left, in whatever way."""
        for lease in [lease for lease in self._leases.values() if lease.connection == connection]:
            self._end(lease, "its holder has left")

    def holds(self, connection: int) -> bool:
        return any(lease.connection == connection for lease in self._leases.values())

    def wait(self) -> Seconds:
        """How long ``tick`` may be put off."""
        now = self._clock.now()
        next_look = [self._looked + LOOK_EVERY] if self.busy else []
        ends = [lease.deadline for lease in self._leases.values()]
        return Seconds(max(0.0, min((*next_look, *ends, now + LOOK_EVERY)) - now))

    def tick(self) -> None:
        """End what has run out; every few seconds look after the rest."""
        now = self._clock.now()
        for lease in [lease for lease in self._leases.values() if lease.deadline <= now]:
            self._end(lease, "it was not renewed in time" if lease.connection is not None else "its time is over")
        if now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        for entry in tuple(self._stuck.values()):
            self._put_back(entry)
        for lease in self._leases.values():
            for device, held in lease.devices.items():
                self._look_after(lease, device, held)

    def close(self) -> None:
        """End every lease. What a driver refuses stays in the journal for the next start."""
        for lease in tuple(self._leases.values()):
            self._end(lease, "the power helper ends")
        for entry in tuple(self._stuck.values()):
            self._put_back(entry)

    def _look_after(self, lease: Lease, device: str, held: Held) -> None:
        try:
            later = self._limiter.backend.life(device)
            limits = self._limiter.backend.limits(device)
            ours, default = self._limiter.ours(held.entry), limits.default
            at_default = default is None or abs(milliwatts(limits.requested) - milliwatts(default)) <= TOLERANCE
            if held.life.ended_before(later) and (ours or at_default):
                self._limiter.assert_again(held.entry, lease.power)
                log.warning("%s: the driver forgot its limits; those of lease %s are set again", device, lease.id)
                ours = True
        except ControlError as error:
            log.warning("%s could not be looked after: %s", device, error)
            return
        if not ours and not held.foreign:
            log.warning("%s: someone else set %g W; lease %s leaves it alone", device, limits.requested, lease.id)
        held.foreign = not ours
        held.life = held.life.followed_by(later)

    def _go_back(self, lease: Lease, changed: Sequence[Held]) -> None:
        for held in changed:
            try:
                held.entry = self._limiter.change(self._limiter.widen(held.entry, lease.power), lease.power)
            except ControlError as error:
                log.warning("%s stands between two limits: %s", held.entry.device, error)

    def _mine(self, lease: Lease) -> Iterator[Held]:
        """Devices that still stand where we put them; what someone else has set since is not overwritten."""
        for held in lease.devices.values():
            held.foreign = not self._limiter.ours(held.entry)
            if not held.foreign:
                yield held

    def _check_free(self, device: str) -> None:
        if device in self._stuck:
            raise ControlError(f"{device} could not be put back from the lease before; it is tried again and again.")
        for lease in self._leases.values():
            if device in lease.devices:
                left = format_duration(max(1.0, lease.deadline - self._clock.now()))
                raise ControlError(
                    f"{device} is already under a limit: lease {lease.id} of {lease.peer.user} (pid {lease.peer.pid}), "
                    f"{left} left. End it with `energyopt cap clear --device {device}`."
                )

    def _owned(self, peer: Peer, lease_id: str) -> Lease:
        lease = self._leases.get(lease_id)
        if lease is None or not _may(peer, lease):
            raise ControlError(f"There is no lease {lease_id} of {peer.user}: it has ended, or never was.")
        return lease

    def _end(self, lease: Lease, why: str) -> list[str]:
        self._leases.pop(lease.id, None)
        log.info("lease %s ends: %s", lease.id, why)
        return [self._put_back(held.entry) for held in reversed(lease.devices.values())]

    def _put_back(self, entry: Entry) -> str:
        try:
            said = self._limiter.put_back(entry)
            self._stuck.pop(entry.device, None)
            log.info("%s", said)
        except ControlError as error:
            said = f"{entry.device} could not be put back yet: {error}"
            if entry.device not in self._stuck:
                log.warning("%s It is tried again every %g s.", said, LOOK_EVERY)
            self._stuck[entry.device] = entry
        return said

    def _told(self, said: Sequence[str]) -> tuple[str, ...]:
        refused = [line for line in said if "could not be put back" in line]
        if refused:
            raise ControlError(" ".join(refused))
        return tuple(said)


def _may(peer: Peer, lease: Lease) -> bool:
    return peer.uid in (0, lease.peer.uid)
