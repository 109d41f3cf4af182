"""The index against a plain model of it, its bounds, and the names of prompts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.units import Seconds
from engine.kv.hashing import BlockHasher
from engine.routing.book import Book
from engine.routing.choose import make_policy
from engine.routing.desk import Asked, Desk
from engine.routing.index import TIERS, PrefixIndex
from engine.routing.names import CHUNK_BYTES, CHUNK_TOKENS, Prompt, Scheme

NAMES = st.lists(st.sampled_from([bytes([n]) for n in range(8)]), max_size=6, unique=True)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["stored", "removed", "cleared", "cleared all"]),
        st.sampled_from("ab"),
        NAMES,
        st.sampled_from(TIERS),
    ),
    max_size=30,
)


@given(steps=STEPS, asked=NAMES)
def test_the_index_is_what_a_plain_table_would_be(
    steps: list[tuple[str, str, list[bytes], str]], asked: list[bytes]
) -> None:
    index, table = PrefixIndex(100), set[tuple[str, bytes, str]]()
    for what, worker, names, tier in steps:
        if what == "stored":
            index.stored(worker, names, tier)
            table |= {(worker, name, tier) for name in names}
        elif what == "removed":
            index.removed(worker, names, tier)
            table -= {(worker, name, tier) for name in names}
        else:
            index.cleared(worker, tier if what == "cleared" else None)
            table = {row for row in table if row[0] != worker or (what == "cleared" and row[2] != tier)}
    for worker in "ab":
        expected: dict[str, int] = {}
        for name in asked:
            held = [tier for tier in TIERS if (worker, name, tier) in table]
            if not held:
                break
            expected[held[0]] = expected.get(held[0], 0) + 1
        assert index.overlap(worker, asked) == expected
        assert index.size(worker) == len({row[1] for row in table if row[0] == worker})


def test_a_full_index_forgets_tails_of_what_was_used_longest_ago() -> None:
    index = PrefixIndex(4)
    first, second = [b"1", b"2", b"3"], [b"x", b"y"]
    index.stored("w", first)
    index.stored("w", second)
    assert index.size("w") == 4
    assert index.overlap("w", first) == {"device": 2}
    assert index.overlap("w", second) == {"device": 2}
    index.stored("w", [*first[:2], b"z"])
    assert index.overlap("w", first) == {"device": 2}
    assert index.overlap("w", second) == {"device": 1}


@given(ids=st.lists(st.integers(0, 2**32 - 1), max_size=70), unit=st.sampled_from([1, 2, 4]), times=st.integers(1, 3))
def test_block_names_are_the_engines_own(ids: list[int], unit: int, times: int) -> None:
    scheme, own = Scheme(unit * times, unit), list[bytes]()
    BlockHasher(unit).extend(own, ids)
    names = Prompt(ids=ids).blocks(scheme)
    assert names is not None
    assert len(names) == len(ids) // scheme.block_tokens
    assert names == [own[(index + 1) * times - 1] for index in range(len(names))]
    assert Prompt(b"text").blocks(scheme) is None


@given(head=st.binary(max_size=900), one=st.binary(max_size=600), other=st.binary(max_size=600))
def test_texts_share_names_exactly_as_far_as_whole_parts_agree(head: bytes, one: bytes, other: bytes) -> None:
    first, second = Prompt(head + one), Prompt(head + other)
    length = min(len(first.text), len(second.text))
    agree = next((at for at in range(length) if first.text[at] != second.text[at]), length)
    shared = [a == b for a, b in zip(first.chunks(), second.chunks(), strict=False)]
    assert sum(shared) == agree // CHUNK_BYTES
    assert shared == sorted(shared, reverse=True)


def _desk(policy: str = "prefix") -> Desk:
    return Desk(make_policy(policy), Book())  # type: ignore[arg-type]


def test_a_worker_without_events_is_remembered_by_what_was_sent_to_it() -> None:
    desk, text = _desk(), b"a" * 5 * CHUNK_BYTES
    home, ticket = desk.give(Asked(Prompt(text), Seconds(0.0)), ["a", "b"])
    desk.book.ended(ticket, Seconds(1.0))
    again, _ = desk.give(Asked(Prompt(text + b"more"), Seconds(1.0)), ["a", "b"])
    assert (again.worker, again.cached_tokens) == (home.worker, 5 * CHUNK_TOKENS)
    desk.forget(home.worker)
    assert desk.give(Asked(Prompt(text), Seconds(2.0)), [home.worker])[0].cached_tokens == 0


def test_events_of_an_engine_count_more_than_what_was_sent_to_it() -> None:
    desk, ids, scheme = _desk(), list(range(640)), Scheme(16, 16)
    prompt = Prompt(ids=ids)
    names = prompt.blocks(scheme)
    assert names is not None
    desk.feed("a", scheme)
    desk.give(Asked(prompt, Seconds(0.0)), ["a"])
    assert desk.give(Asked(Prompt(ids=ids), Seconds(0.0)), ["a"])[0].cached_tokens == 0
    desk.blocks.stored("a", names[:30], "device")
    desk.blocks.stored("a", names, "host")
    assert desk.give(Asked(Prompt(ids=ids), Seconds(0.0)), ["a"])[0].cached_tokens == 640
    assert desk.give(Asked(Prompt(b"only text" * 99), Seconds(0.0)), ["a"])[0].cached_tokens == 0
    desk.unfeed("a")
    assert desk.give(Asked(Prompt(ids=ids), Seconds(0.0)), ["a"])[0].cached_tokens == 640
    assert desk.blocks.size("a") == 0
