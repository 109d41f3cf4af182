"""How the ranks of one engine are wired: laid out once by the engine, told to each rank as plain data, joined there.

``shared`` is memory of this host, for CPU ranks; ``gloo`` its slow twin over the loopback; ``nccl`` is for GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from pydantic import BaseModel, ConfigDict

from energyopt.core.config import EngineConfig

from .link import Link, SharedLink
from .memory import Arena, Region, SharedMemory
from .ports import Alone, Collective, Place
from .process_group import GroupCollective, GroupLink, gloo_group, nccl_group
from .shared import SharedCollective
from .topology import Seat, Topology, Way

Backend = Literal["shared", "gloo", "nccl"]


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Meeting(_Plain):
    """Ranks that exchange something, and where: a region of shared memory if the backend is that."""

    name: str
    ranks: tuple[int, ...]
    region: Region | None = None


class Setup(_Plain):
    """All that one rank is told. ``logits`` is where a rank that ``speaks`` puts its results, in turn into each of
    ``slots`` parts; ``meetings`` are those of the whole engine, in the order in which they are joined. ``inward`` and
    ``outward`` are links to and from the engine, for copies of blocks."""

    config: EngineConfig
    rank: int
    layers: tuple[int, int]
    roles: dict[str, str]
    meetings: tuple[Meeting, ...]
    backend: Backend
    folder: str
    speaks: bool
    logits: Region
    slots: int
    inward: Region
    outward: Region


class Wiring:
    """The engine's side: regions for every group and way of a topology and for the logits of each replica."""

    def __init__(self, topology: Topology, backend: Backend, logits_bytes: int, slots: int) -> None:
        """``logits_bytes`` is the most that one step of one replica gives; ``slots`` steps may be under way."""
        self._topology = topology
        self._backend = backend
        self._slots = slots
        arena = Arena()
        shared = backend == "shared"
        self._groups = [
            (group, SharedCollective.reserve(arena, len(group.ranks)) if shared else None)
            for group in topology.groups()
        ]
        self._ways = [(way, SharedLink.reserve(arena) if shared else None) for way in topology.ways()]
        self._logits = [arena.take(slots * logits_bytes) for _ in range(topology.layout.dp)]
        self._copies = [(SharedLink.reserve(arena), SharedLink.reserve(arena)) for _ in topology.seats]
        self.memory = SharedMemory.create(arena.size)
        for group, region in self._groups:
            if region is not None:
                SharedCollective.initialize(self.memory, region, len(group.ranks))
        links = [region for _, region in self._ways if region is not None]
        for region in (*links, *(end for both in self._copies for end in both)):
            SharedLink.initialize(self.memory, region)

    def logits(self, replica: int) -> list[torch.Tensor]:
        """The slots that a replica's speaker fills in turn."""
        return float_slots(self.memory, self._logits[replica], self._slots)

    def copies(self, rank: int) -> tuple[Link, Link]:
        """The engine's ends of the links to a rank and from it, on which blocks are copied."""
        inward, outward = self._copies[rank]
        return SharedLink(self.memory, inward), SharedLink(self.memory, outward)

    def setup(self, seat: Seat, config: EngineConfig, folder: Path) -> Setup:
        """What the rank at ``seat`` is told; ``folder`` is private to this engine."""
        topology = self._topology
        groups = {
            "tensor": topology.tensor(seat),
            "context": topology.context(seat),
            "experts": topology.experts(seat),
            "data": topology.data(seat),
        }
        roles = {role: group.name for role, group in groups.items() if len(group.ranks) > 1}
        for role, way in (("before", topology.before(seat)), ("behind", topology.behind(seat))):
            if way is not None:
                roles[role] = _way_name(way)
        meetings = [Meeting(name=group.name, ranks=group.ranks, region=region) for group, region in self._groups]
        meetings += [
            Meeting(name=_way_name(way), ranks=(way.sender, way.receiver), region=region) for way, region in self._ways
        ]
        layers = topology.layers(seat)
        return Setup(
            config=config,
            rank=seat.rank,
            layers=(layers.start, layers.stop),
            roles=roles,
            meetings=tuple(meeting for meeting in meetings if seat.rank in meeting.ranks),
            backend=self._backend,
            folder=str(folder),
            speaks=topology.speaker(seat.replica) == seat,
            logits=self._logits[seat.replica],
            slots=self._slots,
            inward=self._copies[seat.rank][0],
            outward=self._copies[seat.rank][1],
        )


def float_slots(memory: SharedMemory, region: Region, slots: int) -> list[torch.Tensor]:
    """A region in equal parts, as float32."""
    whole = torch.frombuffer(memory.view(region), dtype=torch.float32)
    size = len(whole) // slots
    return [whole[slot * size : (slot + 1) * size] for slot in range(slots)]


class Transport(Protocol):
    """Joins one rank to a meeting, as a collective or as an end of a link."""

    def collective(self, meeting: Meeting) -> Collective: ...

    def link(self, meeting: Meeting) -> Link: ...


class SharedTransport:
    """Through memory of this host. Satisfies ``Transport``."""

    def __init__(self, memory: SharedMemory, rank: int) -> None:
        self._memory = memory
        self._rank = rank

    def collective(self, meeting: Meeting) -> Collective:
        assert meeting.region is not None
        return SharedCollective(self._memory, meeting.region, meeting.ranks.index(self._rank), len(meeting.ranks))

    def link(self, meeting: Meeting) -> Link:
        assert meeting.region is not None
        return SharedLink(self._memory, meeting.region)


class GroupTransport:
    """Over torch's process groups: gloo for a CPU, NCCL for a GPU. Satisfies ``Transport``."""

    def __init__(self, folder: Path, rank: int, device: torch.device) -> None:
        self._folder = folder
        self._rank = rank
        self._device = device

    def collective(self, meeting: Meeting) -> Collective:
        return GroupCollective(self._join(meeting))

    def link(self, meeting: Meeting) -> Link:
        peer = 1 - meeting.ranks.index(self._rank)
        return GroupLink(self._join(meeting), peer, self._device)

    def _join(self, meeting: Meeting) -> Any:
        join = gloo_group if self._device.type == "cpu" else nccl_group
        place = meeting.ranks.index(self._rank)
        return join(self._folder / meeting.name, meeting.name, place, len(meeting.ranks))


class Joined:
    """One rank's ends of everything it takes part in."""

    def __init__(self, setup: Setup, transport: Transport) -> None:
        """Every rank joins in the same order, so that nobody waits in a circle."""
        ends: dict[str, Collective] = {}
        links: dict[str, Link] = {}
        for meeting in setup.meetings:
            if meeting.name.startswith(_WAY):
                links[meeting.name] = transport.link(meeting)
            else:
                ends[meeting.name] = transport.collective(meeting)

        def end(role: str) -> Collective:
            return ends[setup.roles[role]] if role in setup.roles else Alone()

        self.place = Place(
            tensor=end("tensor"),
            experts=end("experts"),
            context=end("context"),
            data=end("data"),
            layers=range(*setup.layers),
        )
        self.before = links.get(setup.roles.get("before", ""))
        self.behind = links.get(setup.roles.get("behind", ""))


_WAY = "way-"


def _way_name(way: Way) -> str:
    return f"{_WAY}{way.sender}-{way.receiver}"
