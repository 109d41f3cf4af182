"""Groups of layers over one pool: what engines in the field got wrong, one test for each report."""

from __future__ import annotations

from typing import Any

import pytest

from energyopt.core.errors import ConfigError
from engine.kv.layout import ChunkedLocal, FullAttention, GroupSpec, Layout, RecurrentState, SlidingWindow

HYBRID = (FullAttention(4), SlidingWindow(4, window=7), RecurrentState(8))
LAYOUTS: dict[str, tuple[GroupSpec, ...]] = {
    "full": (FullAttention(4),),
    "window": (FullAttention(4), SlidingWindow(4, window=7)),
    "chunked": (FullAttention(4), ChunkedLocal(4, chunk=8)),
    "state": (FullAttention(4), RecurrentState(8)),
    "mixed": (FullAttention(2), SlidingWindow(4, window=5), RecurrentState(16), RecurrentState(8, "kda")),
}
each_layout = pytest.mark.parametrize("groups", LAYOUTS.values(), ids=LAYOUTS)


def prompt(length: int, *, own: int = 0, shared: int = 1000) -> list[int]:
    """``shared`` tokens that all prompts have in common, then ``own`` ones."""
    return [token if token < shared else 10_000 * own + token for token in range(1, length + 1)]


@each_layout
@pytest.mark.parametrize("divergence", range(34))
def test_divergence_at_every_offset_hits_the_blocks_before_it(
    make_rig: Any, groups: tuple[GroupSpec, ...], divergence: int
) -> None:
    """vllm#57610: a prompt that parted inside the last aligned block hit nothing at all."""
    rig = make_rig(groups=groups, num_blocks=256, retention_interval=None)
    rig.ask(prompt(33))
    again = rig.ask(prompt(40, own=1, shared=divergence + 1))
    grain = Layout(groups).grain
    assert again.cached_tokens == min(divergence, 33) // grain * grain


@pytest.mark.parametrize("name", ["full", "state"])
@pytest.mark.parametrize("length", range(17, 26))
def test_a_hit_may_end_inside_a_block(make_rig: Any, name: str, length: int) -> None:
    """vllm#50359: a partial hit named a boundary that was never stored. Here it is always a multiple of the unit."""
    groups: tuple[GroupSpec, ...] = (FullAttention(8),) if name == "full" else (FullAttention(8), RecurrentState(8))
    rig = make_rig(groups=groups, num_blocks=64, match_tokens=2)
    rig.ask(prompt(length), max_tokens=5)
    again = rig.ask(prompt(length), max_tokens=5)
    longer = rig.ask([*prompt(length), 7, 8, 9], max_tokens=5)
    assert again.cached_tokens == (length - 1) // 2 * 2
    # After the first answer the block is full; what remains findable is the boundary that was registered.
    assert longer.cached_tokens == max((length - 1) // 2 * 2, length // 8 * 8 if name == "full" else 0)
    assert sum(len(batch.copies) for batch in rig.batches) >= (1 if (length - 1) // 2 * 2 % 8 else 0)


def test_a_copied_tail_is_pinned_until_the_copy_has_run(make_rig: Any) -> None:
    rig = make_rig(groups=(FullAttention(8),), num_blocks=5, match_tokens=2)
    rig.ask(prompt(13))
    second = rig.add(prompt(13) + [5] * 12, 1)
    batch = rig.scheduler.schedule()
    (copy,) = batch.copies
    assert copy.target in second.block_ids
    assert not rig.cache.pool.is_idle(copy.source)
    rig.scheduler.settle(batch, rig.runner.run(batch))
    assert rig.cache.pool.is_idle(copy.source)


def test_a_copy_for_a_request_that_ends_first_is_dropped(make_rig: Any) -> None:
    rig = make_rig(groups=(FullAttention(8),), num_blocks=8, match_tokens=2)
    rig.ask(prompt(13))
    ending = rig.add(prompt(13), 1)
    rig.cache.admit(ending, rig.cache.lookup(ending))
    rig.cache.free(ending)
    assert rig.cache.take_copies() == ()
    rig.cache.end_step()
    rig.cache.check_integrity([])


def test_a_prefix_that_stands_in_its_own_way_is_given_up(make_rig: Any) -> None:
    """A pool that just fits a request cannot also pin the block that a copy would come from."""
    rig = make_rig(groups=(FullAttention(8),), num_blocks=2, match_tokens=2)
    assert rig.ask(prompt(13)).cached_tokens == 0
    assert rig.ask(prompt(13)).cached_tokens in (0, 8)


def test_window_churn_flushes_nothing(make_rig: Any) -> None:
    """vllm#42948: blocks that slid out of windows went through the queue and pushed cached prefixes out."""
    rig = make_rig(groups=(FullAttention(4), SlidingWindow(4, window=5)), num_blocks=80, max_num_batched_tokens=8)
    rig.ask(prompt(60))
    for number in range(1, 4):
        rig.ask(prompt(40, own=number, shared=0), max_tokens=20)
    assert rig.ask(prompt(60)).cached_tokens == 56


def test_sessions_in_turn_below_capacity_keep_their_windows(make_rig: Any) -> None:
    """vllm#48435: hits fell to 0 with several sessions in turn at a quarter of the pool."""
    rig = make_rig(groups=(FullAttention(4), SlidingWindow(4, window=9)), num_blocks=400, max_num_batched_tokens=64)
    contexts = [prompt(80, own=number, shared=0) for number in range(6)]
    hits = tokens = 0
    for turn in range(5):
        for number, context in enumerate(contexts):
            answer = rig.ask(context, max_tokens=3)
            hits, tokens = hits + answer.cached_tokens * bool(turn), tokens + len(context) * bool(turn)
            context += [*answer.output, 900 + number, 901 + turn]
    assert hits / tokens > 0.9


@pytest.mark.parametrize(
    "groups", [LAYOUTS["state"], LAYOUTS["window"], LAYOUTS["mixed"]], ids=["state", "window", "mixed"]
)
def test_a_shared_prefix_is_hit_by_the_third_request(make_rig: Any, groups: tuple[GroupSpec, ...]) -> None:
    """vllm#45238: the only kept state lay among each request's own tokens, so 64 requests hit nothing."""
    rig = make_rig(groups=groups, num_blocks=256)
    hits = [rig.ask(prompt(60, own=number, shared=33)).cached_tokens for number in range(1, 5)]
    assert hits[0] == hits[1] == 0
    assert hits[2] == hits[3] == 32


@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize("interval", [None, 0, 16])
@each_layout
def test_speculation_and_retention_agree(
    make_rig: Any, groups: tuple[GroupSpec, ...], interval: int | None, speculative: bool
) -> None:
    """vllm#51771, #51041: the block that speculation drops and the block that is kept excluded each other."""
    grain = Layout(groups).grain
    rig = make_rig(groups=groups, num_blocks=256, retention_interval=interval, speculative=speculative)
    rig.ask(prompt(60))
    again, longer = rig.ask(prompt(60)), rig.ask(prompt(70))
    whole = 59 // grain * grain
    assert again.cached_tokens == whole - grain * speculative
    assert longer.cached_tokens >= whole - grain * speculative


def test_the_speculative_drop_is_taken_once(make_rig: Any) -> None:
    """vllm#32802: one drop per round of the fixed point walked every hit down to 0."""
    groups = (FullAttention(4), SlidingWindow(4, window=7), SlidingWindow(8, window=15), RecurrentState(8))
    rig = make_rig(groups=groups, num_blocks=256, retention_interval=None, speculative=True)
    rig.ask(prompt(65))
    hits = {rig.ask(prompt(65)).cached_tokens for _ in range(4)}
    assert hits == {56}


@each_layout
def test_later_hits_do_not_depend_on_the_chunks_of_a_prefill(make_rig: Any, groups: tuple[GroupSpec, ...]) -> None:
    """vllm#43587, #43628: a prompt computed in one chunk kept one state, in many chunks many."""
    found = set()
    for budget in (9, 33, 200):
        rig = make_rig(groups=groups, num_blocks=900, retention_interval=16, max_num_batched_tokens=budget)
        rig.ask(prompt(75))
        found.add(tuple(rig.ask(prompt(100, own=at, shared=at)).cached_tokens for at in range(4, 76, 7)))
    assert len(found) == 1
    assert any(found.pop())


@each_layout
def test_a_prompt_of_the_whole_context_is_hit(make_rig: Any, groups: tuple[GroupSpec, ...]) -> None:
    """vllm#54094: a prompt of the full context length got no reuse."""
    rig = make_rig(groups=groups, num_blocks=2048, max_model_len=1025, max_num_batched_tokens=256)
    rig.ask(prompt(1024))
    grain = Layout(groups).grain
    assert rig.ask(prompt(1024)).cached_tokens == 1023 // grain * grain


def test_every_group_uses_its_own_block_size(make_rig: Any) -> None:
    """vllm#55600: one group's index was computed with another's block size and read out of bounds."""
    groups = (FullAttention(4), RecurrentState(32), SlidingWindow(2, window=9), FullAttention(16))
    rig = make_rig(groups=groups, num_blocks=300)
    first = rig.add(prompt(100), 8, ignore_eos=True)
    rig.step()
    while first.num_computed < 100:
        rig.step()
    sizes = [group.block_tokens for group in groups]
    lengths = [len(table) for table in (first.block_ids, *first.other_tables)]
    assert lengths == [-(-100 // size) for size in sizes]
    rig.drain()
    assert rig.ask(prompt(100)).cached_tokens == 96


def test_all_hits_are_taken_before_anything_is_allocated(make_rig: Any) -> None:
    """vllm#33775: allocating for one group evicted the blocks that another had just hit."""
    rig = make_rig(groups=HYBRID, num_blocks=24, max_num_batched_tokens=16)
    rig.ask(prompt(33))
    for own in range(1, 6):
        rig.ask(prompt(24, own=own, shared=0))
        before = rig.cache.lookup(rig.add(prompt(40), 1))
        rig.drain()  # the runner refuses to read a block that was given away
        assert before.tokens % 8 == 0


def test_a_window_needs_no_room_for_the_whole_prompt(make_rig: Any) -> None:
    """vllm#39734: a prompt longer than the pool waited for ever although its window fits."""
    rig = make_rig(groups=(SlidingWindow(4, window=9),), num_blocks=8, max_num_batched_tokens=64)
    requests = [rig.add(prompt(150, own=number, shared=0), 20, ignore_eos=True) for number in range(4)]
    rig.drain()
    assert all(len(request.output) == 20 for request in requests)


@pytest.mark.parametrize(("name", "count"), [("full", 1000), ("window", 150), ("chunked", 150), ("mixed", 150)])
def test_answers_do_not_depend_on_the_cache(make_rig: Any, name: str, count: int) -> None:
    """vllm#31210, #26329: other text with the cache on. Up to a thousand prompts, a full pool."""
    answers = []
    for caching in (True, False):
        rig = make_rig(
            groups=LAYOUTS[name],
            num_blocks=120,
            prefix_caching=caching,
            max_num_batched_tokens=48,
            retention_interval=None,
        )
        requests = [rig.add(prompt(9 + at % 31, own=at % 7, shared=at % 37), 3, ignore_eos=True) for at in range(count)]
        rig.drain()
        answers.append([request.output for request in requests])
        assert (sum(request.cached_tokens for request in requests) > 0) == caching
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("groups", "match", "words"),
    [
        ((), None, "without a group"),
        ((SlidingWindow(4, window=0),), None, "window = 0"),
        ((ChunkedLocal(4, chunk=6),), None, "chunk = 6"),
        ((FullAttention(8), RecurrentState(12)), 8, "match_tokens = 8 is not allowed: it must divide every"),
        ((FullAttention(0),), None, "block_tokens = 0"),
    ],
)
def test_groups_that_do_not_fit_together_are_refused(
    groups: tuple[GroupSpec, ...], match: int | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Layout(groups, match)
