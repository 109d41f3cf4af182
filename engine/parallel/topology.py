"""Where each rank of a layout stands, and with whom it computes what. Numbers only; no process, no tensor.

Ranks are numbered replica by replica, stage by stage, tensor rank by tensor rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.config import ParallelLayout


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank's coordinates: its replica (``dp``), its pipeline ``stage`` and its place among the tensor ranks."""

    rank: int
    replica: int
    stage: int
    tensor: int

    def __str__(self) -> str:
        return f"rank {self.rank} (replica {self.replica}, stage {self.stage}, tensor {self.tensor})"


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that exchange something, in their order; ``name`` is unique in the engine."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """From one stage's rank to the next stage's."""

    sender: int
    receiver: int


class Topology:
    """All seats of a layout. ``layers`` is the model's number of them, which ``pp`` divides."""

    def __init__(self, layout: ParallelLayout, layers: int) -> None:
        self.layout = layout
        self._layers = layers
        self.seats = tuple(
            Seat(rank, rank // (layout.pp * layout.tp), rank // layout.tp % layout.pp, rank % layout.tp)
            for rank in range(layout.devices)
        )

    def layers(self, seat: Seat) -> range:
        """The layers of its stage."""
        size = self._layers // self.layout.pp
        return range(seat.stage * size, (seat.stage + 1) * size)

    def tensor(self, seat: Seat) -> Group:
        """Who splits heads, rows and columns with it."""
        return self._group(f"tensor-{seat.replica}-{seat.stage}", seat, replica=True, tensor=False)

    def context(self, seat: Seat) -> Group:
        """Who splits the positions of each sequence with it: neighbours, which hold copies of the same key heads."""
        first = seat.tensor // self.layout.dcp * self.layout.dcp
        ranks = self.tensor(seat).ranks[first : first + self.layout.dcp]
        return Group(f"context-{seat.replica}-{seat.stage}-{first}", ranks)

    def experts(self, seat: Seat) -> Group:
        """Who holds the other experts of its layers: nobody unless experts are spread."""
        if self.layout.ep == 1:
            return Group(f"experts-{seat.rank}", (seat.rank,))
        return self._group(f"experts-{seat.stage}", seat, replica=False, tensor=False)

    def data(self, seat: Seat) -> Group:
        """Who stands at its place in the other replicas."""
        return self._group(f"data-{seat.stage}-{seat.tensor}", seat, replica=False, tensor=True)

    def before(self, seat: Seat) -> Way | None:
        """From the stage before; None for a first one."""
        return Way(seat.rank - self.layout.tp, seat.rank) if seat.stage else None

    def behind(self, seat: Seat) -> Way | None:
        """To the next stage; None for a last one."""
        return Way(seat.rank, seat.rank + self.layout.tp) if seat.stage + 1 < self.layout.pp else None

    def speaker(self, replica: int) -> Seat:
        """The rank whose logits are taken: the first tensor rank of the replica's last stage."""
        return self.seats[(replica + 1) * self.layout.pp * self.layout.tp - self.layout.tp]

    def members(self, replica: int) -> tuple[int, ...]:
        """The ranks of a replica."""
        return tuple(seat.rank for seat in self.seats if seat.replica == replica)

    def groups(self) -> tuple[Group, ...]:
        """Every group of more than one rank, each once."""
        found = {
            group.name: group
            for seat in self.seats
            for group in (self.tensor(seat), self.context(seat), self.experts(seat), self.data(seat))
            if len(group.ranks) > 1
        }
        return tuple(found.values())

    def ways(self) -> tuple[Way, ...]:
        return tuple(way for seat in self.seats if (way := self.behind(seat)) is not None)

    def _group(self, name: str, seat: Seat, *, replica: bool, tensor: bool) -> Group:
        """The ranks of its stage, of its own replica or of its own tensor place only where so asked."""
        return Group(
            name,
            tuple(
                other.rank
                for other in self.seats
                if other.stage == seat.stage
                and (not replica or other.replica == seat.replica)
                and (not tensor or other.tensor == seat.tensor)
            ),
        )
