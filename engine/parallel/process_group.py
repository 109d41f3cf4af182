"""Sums, gathers and links over torch's process groups: gloo between CPU ranks, NCCL (RCCL on ROCm) between GPUs.

Groups are objects of their own, not torch's global one: several engines may live in one process. Meeting place is a
file in a private folder. gloo listens on the loopback address only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore

from energyopt.core.errors import EngineError

from .shared import PATIENCE


def gloo_group(meeting: Path, name: str, rank: int, size: int, patience: float = PATIENCE) -> Any:
    """Join the group ``name`` of CPU ranks. Blocks until all came; raises EngineError if they do not."""
    with _typed(name, rank, size):
        store = PrefixStore(name, FileStore(str(meeting), size))
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=patience)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return dist.ProcessGroupGloo(store, rank, size, options)


def nccl_group(meeting: Path, name: str, rank: int, size: int, patience: float = PATIENCE) -> Any:
    """Join the group ``name`` of GPU ranks, one GPU each. Not run by the tests: they have no GPU."""
    with _typed(name, rank, size):
        store = PrefixStore(name, FileStore(str(meeting), size))
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=patience)
        return dist.ProcessGroupNCCL(store, rank, size, options)


class GroupCollective:
    """A collective over a process group. Satisfies ``ports.Collective``.

    gloo's ranks gather and add in the order of the ranks, which gives the same bits as shared memory does; NCCL's own
    sum has an order of its own, the same for every rank.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank: int = group.rank()
        self.size: int = group.size()
        self._sums = group.name() == "nccl"

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        whole = part.contiguous()
        if self._sums:
            self._wait(lambda: self._group.allreduce([whole]))
            return whole
        wide = whole.float() if whole.is_floating_point() and whole.element_size() < 4 else whole
        parts = self.all_gather(wide)
        total = parts[0]
        for other in parts[1:]:
            total += other
        return total.to(part.dtype)

    def all_gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        whole = part.contiguous()
        parts = [torch.empty_like(whole) for _ in range(self.size)]
        self._wait(lambda: self._group.allgather([parts], [whole]))
        return parts

    def _wait(self, start: Callable[[], Any]) -> None:
        with _typed(self._group.name(), self.rank, self.size):
            start().wait()


class GroupLink:
    """One direction between two ranks of a process group. Satisfies ``link.Link``; ``peer`` is the other's rank."""

    def __init__(self, group: Any, peer: int, device: torch.device) -> None:
        self._group = group
        self._peer = peer
        self._device = device

    def send(self, rows: torch.Tensor) -> None:
        shape = torch.tensor(rows.shape, dtype=torch.int64, device=self._device)
        with _typed(self._group.name(), self._group.rank(), self._group.size()):
            self._group.send([shape], self._peer, 0).wait()
            if rows.numel():
                self._group.send([rows.contiguous()], self._peer, 0).wait()

    def receive(self, dtype: torch.dtype) -> torch.Tensor:
        shape = torch.empty(2, dtype=torch.int64, device=self._device)
        with _typed(self._group.name(), self._group.rank(), self._group.size()):
            self._group.recv([shape], self._peer, 0).wait()
            rows = torch.empty(tuple(shape.tolist()), dtype=dtype, device=self._device)
            if rows.numel():
                self._group.recv([rows], self._peer, 0).wait()
        return rows


@contextmanager
def _typed(name: str, rank: int, size: int) -> Iterator[None]:
    """torch reports a peer that is gone, and one that does not come, as RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise EngineError(f"Rank {rank} of {size} lost its peers in {name}: {first}") from error
