"""What a fake runner keeps in its blocks: for each group of layers a digest of the prefix in place of numbers.

It reads and writes exactly the blocks that a model with these groups would, and says so when one holds something
else: a cache that mixes up blocks, frees one too early or forgets a copy is found at the step in which it happens.
"""

from __future__ import annotations

from collections.abc import Sequence

from energyopt.core.errors import EngineError

from .batch import Batch, BlockCopy, CacheShape, ScheduledRequest
from .kv.layout import GroupSpec, RecurrentState
from .kv.tables import tables_of
from .request import NO_BLOCK, Request

_PRIME = (1 << 61) - 1
_FACTOR = 0x9E3779B97F4A7C15 % _PRIME


def prefix_digest(digest: int, token: int) -> int:
    """The fake KV of a position: a polynomial hash of all tokens up to it (``digest`` is the position before, or 0)."""
    return (digest * _FACTOR + token + 1) % _PRIME


class FakeKv:
    """Block -> what it holds: a digest per position, or for a recurrent group [digest, how many tokens it stands for].

    A position of an attention group that was never written is None.
    """

    def __init__(self, shape: CacheShape) -> None:
        self._groups = shape.all_groups
        self._blocks: dict[int, list[int | None]] = {}

    def get(self, block: int) -> Sequence[int | None]:
        """What a block holds, for a mover; empty where nothing was written yet."""
        return tuple(self._blocks.get(block, ()))

    def set(self, block: int, content: Sequence[int | None]) -> None:
        """Overwrite a block, as a load does."""
        self._blocks[block] = list(content)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        for one in copies:
            self.set(one.target, self.get(one.source))

    def newest(self, request: Request, position: int) -> int:
        """The digest at the last computed position, read as the first group would."""
        group, table = self._groups[0], request.block_ids
        return self._read(request, group, table, position)

    def write(self, request: Request, start: int, digests: Sequence[int]) -> None:
        """Keep the digests of positions from ``start`` on in every group."""
        stop = start + len(digests)
        for group, table in zip(self._groups, tables_of(request), strict=True):
            size = group.block_tokens
            if isinstance(group, RecurrentState):
                self._blocks[_real(request, table, (stop - 1) // size)] = [digests[-1], stop]
                continue
            for position, digest in enumerate(digests, start):
                block = _real(request, table, position // size)
                content = self._blocks.setdefault(block, [])
                content += [None] * (size - len(content))
                content[position % size] = digest

    def verify(self, batch: Batch) -> None:
        """Raise EngineError on the first slot that a request would read wrongly, or block that two would write."""
        writers: dict[int, str] = {}
        for item in batch.items:
            expected = [0]
            for token in item.request.tokens(0, item.start):
                expected.append(prefix_digest(expected[-1], token))
            for group, table in zip(self._groups, tables_of(item.request), strict=True):
                self._verify_group(item, group, table, expected)
                for block in _written(item, group, table):
                    if writers.setdefault(block, item.request.id) != item.request.id:
                        raise EngineError(
                            f"Requests {writers[block]!r} and {item.request.id!r} both write KV block {block}."
                        )

    def _verify_group(self, item: ScheduledRequest, group: GroupSpec, table: list[int], expected: list[int]) -> None:
        first = item.start - 1 if isinstance(group, RecurrentState) else _first_position(group, item.start)
        for position in range(max(0, first), item.start):
            if self._read(item.request, group, table, position) != expected[position + 1]:
                block = table[position // group.block_tokens]
                raise EngineError(
                    f"Request {item.request.id!r} reads another prefix at position {position}, block {block}."
                )

    def _read(self, request: Request, group: GroupSpec, table: list[int], position: int) -> int:
        block = _real(request, table, position // group.block_tokens)
        content = self._blocks.get(block, [])
        if isinstance(group, RecurrentState):
            digest = content[0] if content and content[1] == position + 1 else None
        else:
            digest = content[position % group.block_tokens] if content else None
        if digest is None:
            raise EngineError(f"Request {request.id!r} reads position {position} in block {block}: never written.")
        return digest


def _first_position(group: GroupSpec, position: int) -> int:
    """The first position that a group reads to compute ``position``: exact where its blocks are not."""
    window, chunk = getattr(group, "window", None), getattr(group, "chunk", None)
    if window is not None:
        return int(position + 1 - window)
    return 0 if chunk is None else int(position // chunk * chunk)


def _written(item: ScheduledRequest, group: GroupSpec, table: list[int]) -> list[int]:
    size, stop = group.block_tokens, item.start + item.count
    first = (stop - 1) // size if isinstance(group, RecurrentState) else item.start // size
    return table[first : -(-stop // size)]


def _real(request: Request, table: list[int], index: int) -> int:
    if index >= len(table) or table[index] == NO_BLOCK:
        raise EngineError(f"Request {request.id!r} has no block {index}, but uses it.")
    return table[index]
