"""Sums and gathers among the ranks of one CPU host, through slots in shared memory. Satisfies ``ports.Collective``.

Each rank writes its part into its own slot, posts every peer, and reads all slots once all peers have posted. Slots
are doubled: by the time a rank writes one again, two exchanges later, every peer has posted the exchange in between
and so has read the older one. Longer parts go in pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class _Form:
    """What exchanges of one shape have in common: each half's slots by rank, and how a rank announces it."""

    slots: tuple[list[torch.Tensor], ...]
    announced: bytes


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
        self._forms: dict[tuple[torch.Size, torch.dtype], _Form] = {}
        self._peers = [(peer, rank * size + peer, peer * size + rank) for peer in range(size) if peer != rank]
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
        for piece in self._pieces(result):
            add(piece, self._exchange(piece))
        return result

    def all_gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        """See ``ports.Collective``."""
        source = part.contiguous()
        results = [torch.empty_like(source) for _ in range(self.size)]
        for piece, *targets in zip(self._pieces(source), *map(self._pieces, results), strict=True):
            for target, found in zip(targets, self._exchange(piece), strict=True):
                target.copy_(found)
        return results

    def _pieces(self, whole: torch.Tensor) -> Sequence[torch.Tensor]:
        """At least one, also of nothing: an exchange is a meeting, and every rank comes."""
        if whole.numel() * whole.element_size() <= self._slot_bytes:
            return (whole,)
        flat, length = whole.view(-1), self._slot_bytes // whole.element_size()
        return [flat[start : start + length] for start in range(0, flat.numel(), length)]

    def _exchange(self, piece: torch.Tensor) -> Sequence[torch.Tensor]:
        """Every rank's piece, in the slots, where it is until the exchange after the next."""
        found = self._forms.get((piece.shape, piece.dtype)) or self._form(piece)
        half = self._exchanges & 1
        self._exchanges += 1
        slots, announced = found.slots[half], found.announced
        slots[self.rank].copy_(piece)
        at = self._header(half, self.rank)
        self._headers[at : at + _HEADER.size] = announced
        for _, there, _ in self._peers:
            self._signals.post(there)
        for peer, _, here in self._peers:
            if not self._signals.wait(here, self._patience):
                raise EngineError(
                    f"Rank {peer} of {self.size} did not come to an exchange within {self._patience:g} seconds."
                )
            at = self._header(half, peer)
            if self._headers[at : at + _HEADER.size] != announced:
                theirs, ours = _HEADER.unpack_from(self._headers, at), _HEADER.unpack(announced)
                raise EngineError(f"Rank {peer} brought {theirs[0]} numbers where rank {self.rank} has {ours[0]}.")
        return slots

    def _header(self, half: int, rank: int) -> int:
        return (half * self.size + rank) * _HEADER_BYTES

    def _form(self, piece: torch.Tensor) -> _Form:
        """All ranks' slots as tensors like ``piece``; steps repeat their shapes, so these are kept."""
        if len(self._forms) >= _MANY_SHAPES:
            self._forms.clear()
        size = piece.numel() * piece.element_size()
        slots = tuple([slot[:size].view(piece.dtype).view(piece.shape) for slot in half] for half in self._slots)
        made = _Form(slots, _HEADER.pack(piece.numel(), _DTYPES.index(piece.dtype)))
        self._forms[piece.shape, piece.dtype] = made
        return made


def _add(target: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    torch.add(parts[0], parts[1], out=target) if len(parts) > 1 else target.copy_(parts[0])
    for part in parts[2:]:
        target += part


def _add_wide(target: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    total = parts[0].float()
    for part in parts[1:]:
        total += part
    target.copy_(total)
