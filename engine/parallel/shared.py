"""Sums and gathers among the ranks of one CPU host, through slots in shared memory. Satisfies ``ports.Collective``.

Each rank writes its part into its own slot, posts every peer, and reads all slots once all peers have posted. Slots
are doubled: by the time a rank writes one again, two exchanges later, every peer has posted the exchange in between
and so has read the older one. Longer parts go in pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial

import torch

from energyopt.core.errors import EngineError

from .memory import Arena, Region, SharedMemory
from .semaphores import STRIDE, Semaphores

SLOT_BYTES = 1 << 20
PATIENCE = 120.0
"""Seconds that ranks of one group may differ; they do the same work, so this is far beyond any step."""

_HEADER = struct.Struct("<qq")
_HEADER_BYTES = 64
_MANY_SHAPES = 256
_WIDE = (torch.float32, torch.float64)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8)


class SharedCollective:
    """Rank ``rank`` of ``size`` in ``region`` of ``memory``, which ``initialize`` has made ready once."""

    def __init__(
        self,
        memory: SharedMemory,
        region: Region,
        rank: int,
        size: int,
        *,
        slot_bytes: int = SLOT_BYTES,
        patience: float = PATIENCE,
    ) -> None:
        self.rank = rank
        self.size = size
        self._patience = patience
        self._slot_bytes = slot_bytes
        view = memory.view(region)
        signals = size * size * STRIDE
        self._signals = Semaphores(view[:signals], size * size, memory.check)
        self._headers = view[signals : signals + 2 * size * _HEADER_BYTES]
        data = torch.frombuffer(view[signals + len(self._headers) :], dtype=torch.uint8)
        self._slots = [
            [data[slot * slot_bytes : (slot + 1) * slot_bytes] for slot in range(half * size, (half + 1) * size)]
            for half in range(2)
        ]
        self._views: dict[tuple[int, int, torch.dtype], list[torch.Tensor]] = {}
        self._exchanges = 0

    @staticmethod
    def reserve(arena: Arena, size: int, slot_bytes: int = SLOT_BYTES) -> Region:
        """The region that ``size`` ranks need."""
        return arena.take(size * size * STRIDE + 2 * size * (_HEADER_BYTES + slot_bytes))

    @staticmethod
    def initialize(memory: SharedMemory, region: Region, size: int) -> None:
        """Once, before any rank attaches."""
        Semaphores(memory.view(region)[: size * size * STRIDE], size * size, memory.check).initialize()

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        """See ``ports.Collective``. Two-byte numbers are added up in float32 and rounded once."""
        result = part.contiguous()
        add = _add if part.dtype in _WIDE or not part.is_floating_point() else _add_wide
        for piece in self._pieces(result.view(-1)):
            self._exchange(piece, partial(add, piece))
        return result

    def all_gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        """See ``ports.Collective``."""
        source = part.contiguous().view(-1)
        results = [torch.empty_like(source) for _ in range(self.size)]
        pieces = zip(self._pieces(source), *(self._pieces(result) for result in results), strict=True)
        for piece, *targets in pieces:
            self._exchange(piece, partial(_copy, targets))
        return [result.view(part.shape) for result in results]

    def _pieces(self, flat: torch.Tensor) -> Sequence[torch.Tensor]:
        """At least one, also of nothing: an exchange is a meeting, and every rank comes."""
        length = self._slot_bytes // flat.element_size()
        return [flat[start : start + length] for start in range(0, max(1, flat.numel()), length)]

    def _exchange(self, piece: torch.Tensor, take: Callable[[Sequence[torch.Tensor]], None]) -> None:
        half = self._exchanges & 1
        self._exchanges += 1
        slots = self._shaped(half, piece)
        slots[self.rank].copy_(piece)
        announced = (piece.numel(), _DTYPES.index(piece.dtype))
        _HEADER.pack_into(self._headers, self._header(half, self.rank), *announced)
        for peer in range(self.size):
            if peer != self.rank:
                self._signals.post(self.rank * self.size + peer)
        for peer in range(self.size):
            if peer != self.rank:
                self._await(peer, half, announced)
        take(slots)

    def _await(self, peer: int, half: int, announced: tuple[int, int]) -> None:
        if not self._signals.wait(peer * self.size + self.rank, self._patience):
            raise EngineError(
                f"Rank {peer} of {self.size} did not come to an exchange within {self._patience:g} seconds."
            )
        theirs = _HEADER.unpack_from(self._headers, self._header(half, peer))
        if theirs != announced:
            raise EngineError(f"Rank {peer} brought {theirs[0]} numbers where rank {self.rank} has {announced[0]}.")

    def _header(self, half: int, rank: int) -> int:
        return (half * self.size + rank) * _HEADER_BYTES

    def _shaped(self, half: int, piece: torch.Tensor) -> list[torch.Tensor]:
        """All ranks' slots as tensors like ``piece``; steps repeat their shapes, so these are kept."""
        key = (half, piece.numel(), piece.dtype)
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= _MANY_SHAPES:
                self._views.clear()
            size = piece.numel() * piece.element_size()
            found = self._views[key] = [slot[:size].view(piece.dtype) for slot in self._slots[half]]
        return found


def _add(target: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    torch.add(parts[0], parts[1], out=target) if len(parts) > 1 else target.copy_(parts[0])
    for part in parts[2:]:
        target += part


def _add_wide(target: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    total = parts[0].float()
    for part in parts[1:]:
        total += part
    target.copy_(total)


def _copy(targets: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
    for target, part in zip(targets, parts, strict=True):
        target.copy_(part)
