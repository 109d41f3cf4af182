"""Gives the memory of tensors back while they are not needed, without a change to who holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from energyopt.core.units import Bytes

_OURS = ("engine.", "kernels.")


def tensors_of(root: object) -> Iterator[torch.Tensor]:
    """Every tensor that can be reached from ``root`` through containers and this project's own objects."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif type(one).__module__.startswith(_OURS):
            names = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            waiting += vars(one).values() if hasattr(one, "__dict__") else ()
            waiting += [getattr(one, name) for name in names if hasattr(one, name)]


def give_back(device: torch.device) -> None:
    """Let other processes have what torch holds of ``device`` without a tensor in it: freed storages stay with it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


class Parked:
    """Storages of a device whose memory was given back: ``kept`` in host memory, or of no worth (None).

    Tensors and views stay what they are; reading one before ``restore`` is an error of whoever reads. ``give_back``
    hears of a device when storages on it are freed again, as they could not all be restored.
    """

    def __init__(self, give_back: Callable[[torch.device], None] = give_back) -> None:
        self._give_back = give_back
        self._storages: list[tuple[torch.UntypedStorage, int, torch.Tensor | None]] = []

    def park(self, tensors: Iterator[torch.Tensor], device: torch.device, *, keep: bool) -> Bytes:
        """Free the storages of ``tensors`` on ``device``, each once. With ``keep`` their bytes are copied first."""
        freed = 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            size = storage.nbytes()
            if tensor.device != device or not size or not storage.resizable():
                continue
            copy = None
            if keep:
                whole = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
                copy = whole.to("cpu", copy=True)
            self._storages.append((storage, size, copy))
            storage.resize_(0)
            freed += size
        return Bytes(freed)

    def restore(self) -> None:
        """Take the memory again: what was kept is as before, the rest is zero.

        If there is not enough, what was taken is given back, and the error passes through.
        """
        try:
            for storage, size, copy in self._storages:
                storage.resize_(size)
                whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                if copy is None:
                    whole.zero_()
                else:
                    whole.copy_(copy)
        except BaseException:
            for storage, _, _ in self._storages:
                storage.resize_(0)
            for device in {storage.device for storage, _, _ in self._storages}:
                self._give_back(device)
            raise
        self._storages.clear()
