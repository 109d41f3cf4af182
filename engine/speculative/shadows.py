"""What a draft model has of each request: its tokens, the guesses after them, and places in its own pool."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from ..batch import CacheShape
from ..kv.blocks import BlockPool
from ..kv.tables import tables_of
from ..request import Request


@dataclass(slots=True)
class _Shadow:
    """``same`` output tokens are known to be the request's own; with a ``foreign`` one it cannot be read."""

    request: Request
    same: int = 0
    foreign: bool = False


class Shadows:
    """Requests as the draft model computes them. Nothing is shared between them, and no position is ever let go.

    When places run out, whoever guessed least recently starts anew the next time. ``vocabulary`` is the number of token
    ids that the draft model can read: a model may have more rows than it has tokens.
    """

    def __init__(self, cache: CacheShape, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self.pool = BlockPool(cache.num_blocks)
        self._groups = cache.all_groups
        self._shadows: dict[str, _Shadow] = {}

    def __len__(self) -> int:
        """How many requests are kept."""
        return len(self._shadows)

    def follow(self, request: Request) -> Request | None:
        """The shadow of ``request`` with its tokens, and without the guesses that did not come true; None if it has a
        token that the draft model does not know.

        It has the request's id and wishes, so whoever samples for it draws the same numbers. At least one token is left
        to compute.
        """
        kept = self._shadows.pop(request.id, None) or self._new(request)
        self._shadows[request.id] = kept  # the newest stand last
        shadow, same, output = kept.request, kept.same, request.output
        while same < min(len(shadow.output), len(output)) and shadow.output[same] == output[same]:
            same += 1
        kept.foreign = kept.foreign or max(output[same:], default=0) >= self._vocabulary
        if kept.foreign:
            return None
        shadow.output[same:] = output[same:]
        shadow.num_computed = min(shadow.num_computed, len(shadow.prompt) + same, shadow.num_tokens - 1)
        shadow.guide = None if request.guide is None else request.guide.fork()
        kept.same = len(output)
        return shadow

    def grow(self, shadow: Request, num_tokens: int, keep: Container[str]) -> bool:
        """Let its places cover ``num_tokens``; False if the pool has too few that nobody in ``keep`` has."""
        while (missing := sum(self._missing(shadow, num_tokens))) > self.pool.num_available:
            oldest = next((name for name in self._shadows if name not in keep), None)
            if oldest is None:
                return False
            self._free(oldest)
        for table, count in zip(tables_of(shadow), self._missing(shadow, num_tokens), strict=True):
            table += self.pool.allocate(count) if missing else ()
        return True

    def forget(self, request_id: str) -> None:
        """Its places are free; an unknown id is ignored."""
        if request_id in self._shadows:
            self._free(request_id)

    def clear(self) -> None:
        """The pool's content is lost: all start anew."""
        for name in tuple(self._shadows):
            self._free(name)

    def _new(self, request: Request) -> _Shadow:
        params = replace(
            request.params, logprobs=None, prompt_logprobs=None, max_tokens=max(1, request.params.max_tokens)
        )
        shadow = Request(request.id, request.prompt, params, request.arrival, request.session)
        shadow.other_tables = [[] for _ in self._groups[1:]]
        return _Shadow(shadow, foreign=max(request.prompt) >= self._vocabulary)

    def _missing(self, shadow: Request, num_tokens: int) -> list[int]:
        return [
            max(0, -(-num_tokens // group.block_tokens) - len(table))
            for group, table in zip(self._groups, tables_of(shadow), strict=True)
        ]

    def _free(self, name: str) -> None:
        for table in tables_of(self._shadows.pop(name).request):
            self.pool.free(table)
