"""Which simulated engine a request goes to: by the policies of the engine's own router, asked as the router asks them.

Simulated engines run ahead of one another, so nothing is known of how far a request has come when the next arrives.
Each counts as done at once, and what weighs on an engine is the work it was given lately, which fades.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from energyopt.core.units import Seconds
from engine.routing.book import FADING, Book
from engine.routing.cost import CostModel
from engine.routing.index import PrefixIndex
from engine.routing.ports import Overlap, RouteRequest, RoutingPolicy, WorkerLoad
from engine.routing.ties import TieBreaker

from .replica import SimRequest

MAX_BLOCKS = 1 << 20
"""Blocks remembered of an engine, as of a worker of the router."""
CLOSE = 1e-6
"""Logarithms of work that are as near as that may be in another order than the work itself."""


class Router(Protocol):
    """Chooses one of ``engines`` engines, from the request and what was routed before."""

    def pick(self, request: SimRequest, engines: int) -> int: ...


class Routed:
    """Any policy of ``engine.routing``. Knows prefixes by the names of their blocks of ``block_tokens`` tokens, and of
    an engine's at most ``max_blocks``, those used longest ago forgotten first.
    """

    def __init__(self, policy: RoutingPolicy, block_tokens: int, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._policy, self._block = policy, block_tokens
        self._book, self._index = Book(), PrefixIndex(max_blocks)

    def pick(self, request: SimRequest, engines: int) -> int:
        workers, now = [str(number) for number in range(engines)], Seconds(request.arrival)
        found = {worker: self._index.overlap(worker, request.names) for worker in workers}
        overlaps = {
            worker: Overlap({tier: count * self._block for tier, count in held.items()}, exact=True)
            for worker, held in found.items()
            if held
        }
        prompt = _to_compute(request)
        asked = RouteRequest(prompt, now, request.session, _key(request), request.output_tokens, overlaps)
        choice = self._policy.choose(asked, self._book.loads(workers, now))
        ticket = self._book.sent(choice.worker, prompt, min(choice.cached_tokens, prompt), now)
        self._book.began(ticket)
        self._book.ended(ticket, now, request.output_tokens)
        self._index.stored(choice.worker, request.names)
        return int(choice.worker)


class PrefixRouter:
    """``Routed(PrefixAware(CostModel()))`` for many engines: the same choices in a fraction of the time.

    Holders of a block are bits of one number, so the engines that hold the same part of a prompt are found at once.
    Work fades alike everywhere, so engines keep their order between requests: of those that hold nothing of a prompt
    only the least busy ones are looked at.
    """

    def __init__(self, block_tokens: int, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._block, self._max, self._cost, self._ties = block_tokens, max_blocks, CostModel(), TieBreaker(0)
        self._holders: dict[bytes, int] = {}
        self._held: list[OrderedDict[bytes, None]] = []
        self._recent: list[float] = []
        self._at: list[float] = []
        self._keys: list[float] = []
        self._order: list[tuple[float, int]] = []

    def pick(self, request: SimRequest, engines: int) -> int:
        if len(self._held) != engines:
            self._held = [OrderedDict() for _ in range(engines)]
            self._recent, self._at, self._keys = [0.0] * engines, [0.0] * engines, [-math.inf] * engines
            self._order = [(-math.inf, number) for number in range(engines)]
        prompt, now = _to_compute(request), request.arrival
        levels = self._overlaps(request, engines)
        best = self._cheapest(prompt, now, levels)
        chosen = best[0] if len(best) == 1 else self._among(request, best)
        overlap = next(tokens for tokens, holders in levels if holders >> chosen & 1)
        fresh = max(1, prompt - min(overlap, prompt))
        self._note(chosen, self._faded(chosen, now) + fresh + request.output_tokens, now)
        self._store(chosen, request.names)
        return chosen

    def _cheapest(self, prompt: int, now: float, levels: Sequence[tuple[int, int]]) -> list[int]:
        """The engines of the lowest cost, in order of their numbers."""
        weight, lowest = self._cost.recent, math.inf
        found: list[tuple[float, int]] = []
        for tokens, engines in reversed(levels):
            base, left, edge = prompt - min(tokens, prompt), engines, math.inf
            if base > lowest:
                continue
            for key, number in self._order:
                if left >> number & 1:
                    cost = base + weight * self._faded(number, now)
                    if cost <= lowest:
                        lowest = cost
                        found.append((cost, number))
                    elif key > edge:
                        break
                    if cost <= lowest or edge == math.inf:
                        edge = key + CLOSE
                    left ^= 1 << number
                    if not left:
                        break
        return sorted(number for cost, number in found if cost <= lowest)

    def _faded(self, number: int, now: float) -> float:
        return self._recent[number] * math.exp(min(0.0, (self._at[number] - now) / FADING))

    def _note(self, number: int, work: float, now: float) -> None:
        """The engine's recent work is ``work`` now: it takes its place in the order of what will be left of it."""
        del self._order[bisect_left(self._order, (self._keys[number], number))]
        self._recent[number], self._at[number] = work, now
        self._keys[number] = math.log(work) + now / FADING
        insort(self._order, (self._keys[number], number))

    def _overlaps(self, request: SimRequest, engines: int) -> list[tuple[int, int]]:
        """Tokens of leading blocks, rising, and the engines (as bits) that hold just these."""
        levels: list[tuple[int, int]] = []
        left = (1 << engines) - 1
        holders = self._holders.get
        for depth, name in enumerate(request.names):
            kept = left & holders(name, 0)
            if kept != left:
                levels.append((depth * self._block, left & ~kept))
                left = kept
                if not left:
                    return levels
        levels.append((len(request.names) * self._block, left))
        return levels

    def _among(self, request: SimRequest, best: list[int]) -> int:
        asked = RouteRequest(_to_compute(request), Seconds(request.arrival), request.session, _key(request))
        return int(self._ties.among(asked, [WorkerLoad(str(number)) for number in best]).name)

    def _store(self, chosen: int, names: tuple[bytes, ...]) -> None:
        held, holders, bit = self._held[chosen], self._holders, 1 << chosen
        for name in reversed(names):
            if name in held:
                held.move_to_end(name)
            else:
                held[name] = None
                holders[name] = holders.get(name, 0) | bit
        while len(held) > self._max:
            name, _ = held.popitem(last=False)
            left = holders[name] & ~bit
            if left:
                holders[name] = left
            else:
                del holders[name]


def _to_compute(request: SimRequest) -> int:
    """Prompt tokens that an engine may have to compute; none but the newest of one that another has prefilled."""
    return 1 if request.filled else len(request.prompt)


def _key(request: SimRequest) -> bytes:
    """What the prompt begins with."""
    return request.names[0] if request.names else b""
