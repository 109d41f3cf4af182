"""The longest prefix over groups, against a search that tries every length."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv.blocks import BlockPool
from engine.kv.layout import ChunkedLocal, FullAttention, GroupSpec, Layout, RecurrentState, SlidingWindow
from engine.kv.lookup import Search

LAYOUTS = (
    Layout((FullAttention(2),)),
    Layout((FullAttention(6),), match_tokens=2),
    Layout((FullAttention(2), SlidingWindow(4, window=7))),
    Layout((SlidingWindow(2, window=5), SlidingWindow(3, window=2))),
    Layout((ChunkedLocal(2, chunk=6), FullAttention(3))),
    Layout((FullAttention(4), RecurrentState(8)), match_tokens=2),
    Layout((FullAttention(2), RecurrentState(4), SlidingWindow(6, window=8), RecurrentState(6))),
    Layout((SlidingWindow(4, window=6), ChunkedLocal(8, chunk=8), FullAttention(8), RecurrentState(4)), match_tokens=4),
    Layout((RecurrentState(3),)),
)
TOKENS = 48


class Known:
    """What a pool and the tiers below are said to hold, as sets."""

    def __init__(self, layout: Layout, data: st.DataObject) -> None:
        self.layout = layout
        blocks = [(g, i) for g, spec in enumerate(layout.groups) for i in range(TOKENS // spec.block_tokens)]
        # Mostly there: of sparse sets nearly every answer is 0.
        absent = data.draw(st.sets(st.sampled_from(blocks), max_size=len(blocks) // 3))
        self.whole = set(blocks) - absent
        inner = [
            (g, p)
            for g, spec in enumerate(layout.groups)
            for p in range(layout.unit, TOKENS + 1, layout.unit)
            if p % spec.block_tokens and layout.partial
        ]
        self.parts = data.draw(st.sets(st.sampled_from(inner))) if inner else set()
        below = data.draw(st.sets(st.sampled_from(blocks), max_size=len(blocks))) if not layout.partial else set()
        self.lower = dict.fromkeys(below, "host")

    def pool(self, hashes: list[bytes]) -> BlockPool:
        pool = BlockPool(len(self.whole) + len(self.parts) + 1, len(self.layout.groups))
        for group, index in self.whole:
            (block,) = pool.allocate(1)
            pool.register(block, hashes[(index + 1) * self.layout.units_per_block[group] - 1], group)
        for group, position in self.parts:
            (block,) = pool.allocate(1)
            pool.register_partial(block, hashes[position // self.layout.unit - 1], group)
        return pool

    def serves(self, group: int, spec: GroupSpec, length: int) -> bool:
        """Whether a group can go on from ``length``: every position that it reads is in a known block."""
        size = spec.block_tokens
        if not length:
            return True
        if isinstance(spec, RecurrentState):
            return self._has(group, length // size - 1) if length % size == 0 else (group, length) in self.parts
        first = {FullAttention: 0, SlidingWindow: length + 1 - getattr(spec, "window", 0)}.get(type(spec))
        start = length // spec.chunk * spec.chunk if isinstance(spec, ChunkedLocal) else max(0, first or 0)
        for index in {position // size for position in range(start, length)}:
            ends_inside = (index + 1) * size > length
            if self._has(group, index) and (self.layout.partial or not ends_inside):
                continue
            if not (ends_inside and (group, length) in self.parts):
                return False
        return self.layout.partial or length % size == 0

    def longest(self, limit: int) -> int:
        lengths = range(limit // self.layout.unit * self.layout.unit, 0, -self.layout.unit)
        return next((n for n in lengths if all(self.serves(g, s, n) for g, s in enumerate(self.layout.groups))), 0)

    def _has(self, group: int, index: int) -> bool:
        return (group, index) in self.whole or (group, index) in self.lower


@given(layout=st.sampled_from(LAYOUTS), limit=st.integers(0, TOKENS), data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_fixed_point_is_the_longest_prefix_that_every_group_serves(
    layout: Layout, limit: int, data: st.DataObject
) -> None:
    known = Known(layout, data)
    hashes = [number.to_bytes(16, "big") for number in range(TOKENS // layout.unit)]
    search = Search(layout, known.pool(hashes), hashes, known.lower)
    found = search.longest(limit)
    assert found == known.longest(limit)
    assert search.longest(found) == found, "asked again from its own answer it stays"


@given(layout=st.sampled_from(LAYOUTS), limit=st.integers(0, TOKENS), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_speculative_drop_costs_at_most_one_grain_of_what_attention_knows(
    layout: Layout, limit: int, data: st.DataObject
) -> None:
    known = Known(layout, data)
    hashes = [number.to_bytes(16, "big") for number in range(TOKENS // layout.unit)]
    search = Search(layout, known.pool(hashes), hashes, known.lower)
    readers = [(g, s) for g, s in enumerate(layout.groups) if not isinstance(s, RecurrentState)]
    lengths = range(limit // layout.unit * layout.unit, 0, -layout.unit)
    attention = next((n for n in lengths if all(known.serves(g, s, n) for g, s in readers)), 0)
    expected = known.longest(max(0, attention - layout.grain))
    assert search.longest(limit, layout.grain) == expected
