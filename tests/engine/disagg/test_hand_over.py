"""Two schedulers that hand prompts over: the same text as one, one token computed, no block lost, whatever fails."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.records import FinishReason
from engine.disagg.fake import FakeRemote, FakeWorld
from engine.disagg.params import Lend, Offer
from engine.disagg.prompt import lent_prompt
from engine.fake import FakeRunner
from engine.kv.layout import FullAttention, GroupSpec, RecurrentState, SlidingWindow
from engine.request import Request, SamplingParams, Status

HYBRID = (FullAttention(4), SlidingWindow(4, window=7), RecurrentState(8))


def prompt(length: int, own: int = 0, shared: int = 1000) -> list[int]:
    return [token if token < shared else 10_000 * own + token for token in range(1, length + 1)]


class Pair:
    """A prefill engine, a decode engine, and one that does everything for comparison."""

    def __init__(
        self,
        make_rig: Any,
        groups: tuple[GroupSpec, ...] = (),
        *,
        delays: Iterator[int] | None = None,
        failures: Iterator[bool] | None = None,
        recompute: bool = True,
        decode_blocks: int = 64,
        **options: Any,
    ) -> None:
        self.world = FakeWorld()

        def remote(runner: FakeRunner) -> FakeRemote:
            return FakeRemote(
                self.world,
                read=runner.block,
                write=runner.set_block,
                delays=delays,
                failures=failures,
                recompute=recompute,
            )

        self.prefill = make_rig(groups=groups, remote=remote, **options)
        self.decode = make_rig(groups=groups, remote=remote, num_blocks=decode_blocks, **options)
        self.plain = make_rig(groups=groups, prefix_caching=False)

    def offer(self, tokens: Sequence[int]) -> Offer:
        """The prefill leg."""
        wish = SamplingParams(transfer=Lend())
        request = self.prefill.add(lent_prompt(tokens, wish, self.prefill.cache.shape), 1, transfer=Lend())
        while request.finish_reason is None:
            assert self.prefill.step()
        assert request.kv.offer is not None
        return request.kv.offer  # type: ignore[no-any-return]

    def serve(self, tokens: Sequence[int], max_tokens: int = 6) -> Request:
        """Both legs."""
        request: Request = self.decode.add(tokens, max_tokens, ignore_eos=True, transfer=self.offer(tokens))
        self.finish(request)
        return request

    def finish(self, *requests: Request) -> None:
        for _ in range(2000):
            self.decode.step()
            for lost in self.decode.scheduler.lost:
                self.decode.scheduler.finish(lost, FinishReason.ERROR)
            self.decode.scheduler.lost = []
            if all(request.finish_reason is not None for request in requests):
                return
        raise AssertionError("a request did not end")

    def check_idle(self) -> None:
        """Nothing is lent, held or used once everything has ended."""
        for rig in (self.prefill, self.decode):
            for _ in range(3):
                rig.step()
            assert not rig.cache.busy
            assert rig.cache.pool.num_used == 0
            rig.scheduler.check_integrity()
        assert not self.world.leases

    def expected(self, tokens: Sequence[int], max_tokens: int = 6) -> list[int]:
        return list(self.plain.ask(tokens, max_tokens=max_tokens).output)


@pytest.mark.parametrize("groups", [(), HYBRID], ids=["full", "hybrid"])
def test_every_length_gives_the_same_text_and_computes_one_token(make_rig: Any, groups: Any) -> None:
    pair = Pair(make_rig, groups, delays=itertools.cycle([0, 3]))
    for length in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 41, 64, 65, 90):
        tokens = prompt(length, own=length, shared=0)
        before = len(pair.decode.records)
        request = pair.serve(tokens)
        assert request.output == pair.expected(tokens), length
        first = pair.decode.records[before].shares[0]
        assert (first.computed_tokens, first.context_tokens) == (1, length - 1)
        assert request.cached_by_tier == ({"remote": length - 1} if length > 1 else {})
        pair.check_idle()
    assert pair.decode.cache.load_failures == 0


def test_what_the_decode_side_has_is_not_pulled_again(make_rig: Any) -> None:
    pair = Pair(make_rig)
    pair.serve(prompt(32))
    before = pair.decode.cache.counts()[0].loads
    again = pair.serve(prompt(40, own=1, shared=25))
    assert again.cached_by_tier == {"device": 24, "remote": 15}
    assert pair.decode.cache.counts()[0].loads - before == 4
    assert again.output == pair.expected(prompt(40, own=1, shared=25))
    same = pair.serve(prompt(33))  # 8 whole blocks are here, which is all but the last token
    assert same.cached_by_tier == {"device": 32}
    assert same.output == pair.expected(prompt(33))
    pair.check_idle()


def test_pulled_blocks_are_found_by_others(make_rig: Any) -> None:
    pair = Pair(make_rig)
    pair.serve(prompt(41))
    other = pair.decode.ask(prompt(41, own=1, shared=30), max_tokens=3)
    assert other.cached_by_tier == {"device": 28}
    assert other.output == pair.expected(prompt(41, own=1, shared=30), 3)


@pytest.mark.parametrize("groups", [(), HYBRID], ids=["full", "hybrid"])
def test_blocks_that_do_not_come_are_computed(make_rig: Any, groups: Any) -> None:
    pair = Pair(make_rig, groups, failures=itertools.cycle([True, True, False]), delays=itertools.cycle([2, 0, 1]))
    for length in (5, 16, 33, 41, 60):
        tokens = prompt(length, own=length, shared=0)
        assert pair.serve(tokens).output == pair.expected(tokens)
    assert pair.decode.cache.load_failures == 4
    pair.check_idle()


def test_by_policy_a_failure_ends_the_request_and_nothing_else(make_rig: Any) -> None:
    pair = Pair(make_rig, failures=iter([True, False]), recompute=False)
    assert pair.serve(prompt(20)).finish_reason is FinishReason.ERROR
    assert pair.serve(prompt(21)).output == pair.expected(prompt(21))
    wrong = replace(pair.offer(prompt(22)), layout="another")
    refused = pair.decode.add(prompt(22), 2, transfer=wrong)
    pair.finish(refused)
    assert refused.finish_reason is FinishReason.ERROR
    pair.world.expire_all()
    assert pair.serve(prompt(1)).output == pair.expected(prompt(1)), "one token needs no blocks"
    pair.check_idle()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda offer: replace(offer, layout="another"),
        lambda offer: replace(offer, tables=()),
        lambda offer: replace(offer, tables=(offer.tables[0][:-1],)),
        lambda offer: replace(offer, tables=((-1, *offer.tables[0][1:]),)),
        lambda offer: replace(offer, num_tokens=12),
        lambda offer: replace(offer, lease="f" * 32),
    ],
)
def test_an_offer_that_does_not_fit_changes_time_not_text(make_rig: Any, spoil: Any) -> None:
    pair = Pair(make_rig)
    request = pair.decode.add(prompt(30), 6, ignore_eos=True, transfer=spoil(pair.offer(prompt(30))))
    pair.finish(request)
    assert request.output == pair.expected(prompt(30))
    assert pair.decode.cache.load_failures == 1
    assert "remote" not in request.cached_by_tier
    pair.world.expire_all()
    pair.check_idle()


def test_blocks_of_another_prompt_are_never_used(make_rig: Any) -> None:
    pair = Pair(make_rig)
    request = pair.decode.add(prompt(30, own=2, shared=3), 6, ignore_eos=True, transfer=pair.offer(prompt(30)))
    pair.finish(request)
    assert request.output == pair.expected(prompt(30, own=2, shared=3))
    assert pair.decode.cache.load_failures == 1
    pair.check_idle()


def test_lent_blocks_stay_until_fetched_or_expired(make_rig: Any) -> None:
    pair = Pair(make_rig)
    pair.offer(prompt(40))
    assert pair.prefill.cache.pool.num_used == 10
    for number in range(12):
        request = pair.prefill.add(prompt(60, own=number, shared=0), 1)
        while request.finish_reason is None:
            pair.prefill.step()
    assert pair.prefill.cache.pool.num_used == 10, "others do not get lent blocks"
    pair.world.expire_all()
    pair.check_idle()


def test_a_pool_full_of_lent_blocks_waits_for_their_end(make_rig: Any) -> None:
    pair = Pair(make_rig)
    for number in range(6):
        pair.offer(prompt(40, own=number, shared=0))
    waiting = pair.prefill.add(prompt(40, own=9, shared=0), 1)
    for _ in range(20):
        pair.prefill.step()
    assert waiting.finish_reason is None
    pair.world.expire_all()
    pair.prefill.drain()
    assert waiting.finish_reason is FinishReason.LENGTH


def test_an_abort_while_blocks_come_keeps_them_until_they_came(make_rig: Any) -> None:
    pair = Pair(make_rig, delays=itertools.repeat(5))
    request = pair.decode.add(prompt(40), 4, transfer=pair.offer(prompt(40)))
    pair.decode.step()
    assert request.status is Status.LOADING
    pair.decode.scheduler.finish(request, FinishReason.ABORT)
    assert pair.decode.cache.pool.num_used == 10, "the copy still writes to them"
    for _ in range(8):
        pair.decode.step()
    pair.check_idle()


def test_preempted_decodes_compute_their_prompt_again(make_rig: Any) -> None:
    pair = Pair(make_rig, decode_blocks=24)
    prompts = [prompt(30, own=number, shared=0) for number in range(3)]
    requests = [pair.decode.add(p, 20, ignore_eos=True, transfer=pair.offer(p)) for p in prompts]
    pair.finish(*requests)
    assert sum(request.num_preemptions for request in requests) > 0
    assert [request.output for request in requests] == [pair.expected(p, 20) for p in prompts]
    pair.check_idle()


EVENT = st.one_of(
    st.tuples(st.just("serve"), st.integers(1, 50), st.integers(0, 5), st.integers(0, 50)),
    st.tuples(st.just("offer"), st.integers(1, 50), st.integers(0, 5), st.integers(0, 50)),
    st.tuples(st.sampled_from(["abort", "expire", "step", "reset"]), st.integers(0, 9), st.just(0), st.just(0)),
)


@settings(max_examples=40, deadline=None)
@given(
    events=st.lists(EVENT, max_size=25),
    delays=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    failures=st.lists(st.booleans(), min_size=1, max_size=5),
    hybrid=st.booleans(),
)
def test_no_block_is_lost_and_no_text_changes(
    make_rig: Any, events: Any, delays: list[int], failures: list[bool], hybrid: bool
) -> None:
    pair = Pair(
        make_rig,
        HYBRID if hybrid else (),
        delays=itertools.cycle(delays),
        failures=itertools.cycle(failures),
        decode_blocks=40,
    )
    live: list[tuple[Request, list[int]]] = []
    for kind, number, own, shared in events:
        if kind in ("serve", "offer") and len(pair.world.leases) < 3:
            tokens = prompt(number, own, shared)
            offer = pair.offer(tokens)
            if kind == "serve":
                live.append((pair.decode.add(tokens, 5, ignore_eos=True, transfer=offer), tokens))
        elif kind == "abort" and live:
            pair.decode.scheduler.finish(live[number % len(live)][0], FinishReason.ABORT)
        elif kind == "expire" and pair.world.leases:
            pair.world.end(sorted(pair.world.leases)[number % len(pair.world.leases)])
        elif kind == "reset":
            pair.decode.cache.reset("device")
        for _ in range(number if kind == "step" else 1):
            pair.decode.step()
            pair.prefill.step()
    pair.finish(*(request for request, _ in live))
    for request, tokens in live:
        if request.finish_reason is not FinishReason.ABORT:
            assert request.output == pair.expected(tokens, 5)
    pair.world.expire_all()
    pair.decode.drain()
    pair.check_idle()
