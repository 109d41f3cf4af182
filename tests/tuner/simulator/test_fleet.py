"""A trace over several engines: named blocks hit what hashed ones hit, and routing keeps prefixes together."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.config import EngineConfig, KvConfig, ParallelLayout
from energyopt.core.errors import ConfigError
from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.results import RunResult, summarize
from energyopt.core.units import Bytes, Seconds
from engine.routing.choose import POLICIES, PolicyName, make_policy
from tuner.simulator.constants import load_constants
from tuner.simulator.digest import Digest
from tuner.simulator.fleet import Fleet
from tuner.simulator.hardware import load_gpu
from tuner.simulator.machine import Machine
from tuner.simulator.models import load_model_spec
from tuner.simulator.replica import SimRequest
from tuner.simulator.routing import PrefixRouter, Routed, Router
from tuner.simulator.traffic import mooncake_requests

GPU = load_gpu("h200")
SPEC = load_model_spec("llama-3.1-8b")
MACHINE = Machine(SPEC, GPU, ParallelLayout(), load_constants(GPU, moe=False))


def serve(requests: list[SimRequest], router: Router, *, block: int = 512, stepping: bool = False) -> RunResult:
    cache = KvConfig(block_tokens=block, memory_bytes=Bytes(20 << 30))
    config = EngineConfig(model="m", max_num_seqs=64, max_num_batched_tokens=8192, kv=cache)
    return Fleet(MACHINE, config, 3, router=router, stepping=stepping).run(requests)


def turns(block: int = 512) -> Router:
    """One engine after the other."""
    return Routed(make_policy("round-robin"), block)


def rows(traces: Path, count: int, *, block_tokens: int | None, together: bool = True) -> list[SimRequest]:
    """The first requests of two rounds of the trace's first two hundred rows."""
    trace = traces / "mooncake" / "conversation_trace.jsonl"
    both = mooncake_requests(trace, limit=200, repeat=2, together=together, block_tokens=block_tokens)
    return list(islice(both, count))


@pytest.mark.parametrize("block", [512, 256])
def test_named_blocks_give_what_hashed_blocks_give(traces: Path, block: int) -> None:
    hashed, named = (rows(traces, 60, block_tokens=tokens) for tokens in (None, block))
    assert [len(one.prompt) for one in hashed] == [len(one.prompt) for one in named]
    one, other = (serve(requests, turns(block), block=block) for requests in (hashed, named))
    assert one == other
    assert one.cached_tokens


def test_a_fleet_that_leaps_is_one_that_steps(traces: Path) -> None:
    requests = rows(traces, 30, block_tokens=512)
    assert serve(requests, turns()) == serve(requests, turns(), stepping=True)


def conversations(count: int, turns: int) -> list[SimRequest]:
    """Turns that repeat all that was said before, the sessions interleaved."""
    requests = []
    for turn in range(turns):
        for session in range(count):
            names = tuple((session << 8 | block).to_bytes(16, "little") for block in range(2 * (turn + 1)))
            number = turn * count + session
            requests.append(SimRequest(f"{number}", 5.0 * number, (0,) * (512 * len(names) + 9), 40, names=names))
    return requests


def test_affinity_finds_more_prefixes_and_forgets_nothing() -> None:
    requests = conversations(8, 5)
    spread, kept = serve(requests, turns()), serve(requests, PrefixRouter(512))
    assert kept.requests == spread.requests == 40
    assert kept.output_tokens == spread.output_tokens == sum(request.output_tokens for request in requests)
    assert kept.cached_tokens is not None
    assert kept.cached_tokens == sum(512 * (len(request.names) - 2) for request in requests)
    assert (spread.cached_tokens or 0) < kept.cached_tokens
    assert kept.simulated
    assert kept.split is not None
    assert kept.joules == pytest.approx(kept.split.total)


def test_rounds_follow_one_another_or_run_together(traces: Path) -> None:
    together, after = (rows(traces, 400, block_tokens=512, together=flag) for flag in (True, False))
    assert together[1].arrival == together[0].arrival
    assert set(together[0].names).isdisjoint(together[1].names)
    assert [row.arrival for row in after] == sorted(row.arrival for row in after)
    assert after[-1].arrival > 1.9 * together[-1].arrival
    with pytest.raises(ConfigError, match="must divide 512"):
        rows(traces, 1, block_tokens=100)


def test_a_digest_says_what_the_records_say() -> None:
    digest = Digest()
    records = [
        RequestRecord(
            str(n),
            Seconds(0.0),
            Seconds(1.0 + 0.1 * n),
            10,
            0,
            3,
            FinishReason.LENGTH,
            tuple(Seconds(0.25 * (1 + k) * (1 + 0.01 * n)) for k in range(3)),
        )
        for n in range(37)
    ]
    for record in records:
        digest.add(record)
    found = digest.latencies()
    assert found["ttft"] == summarize(record.ttft for record in records if record.ttft is not None)
    gaps = summarize(gap for record in records for gap in record.gaps)
    assert gaps is not None
    assert found["itl"].p99 == pytest.approx(gaps.p99, rel=1e-6)
    assert found["itl"].samples == gaps.samples == 74


@st.composite
def arriving(draw: st.DrawFn) -> list[SimRequest]:
    """Requests whose prompts share beginnings, some of them with a session, at growing times."""
    requests, now = [], 0.0
    for number in range(draw(st.integers(1, 40))):
        now += draw(st.sampled_from([0.0, 0.5, 300.0]))
        path = draw(st.lists(st.integers(0, 2), max_size=6))
        names = tuple(bytes([len(path[: end + 1]), *path[: end + 1]]) for end in range(len(path)))
        length = 16 * len(names) + draw(st.integers(1, 40))
        session = draw(st.sampled_from([None, "a", "b"]))
        output, filled = draw(st.integers(1, 90)), draw(st.booleans())
        requests.append(SimRequest(str(number), now, (0,) * length, output, session, names, filled))
    return requests


@settings(max_examples=40)
@given(arriving(), st.integers(1, 7), st.sampled_from([1, 4, 1 << 20]))
def test_the_quick_router_chooses_as_the_engines_own_policy_does(
    requests: list[SimRequest], engines: int, blocks: int
) -> None:
    slow = Routed(make_policy("prefix"), 16, max_blocks=blocks)
    quick = PrefixRouter(16, max_blocks=blocks)
    for request in requests:
        assert quick.pick(request, engines) == slow.pick(request, engines)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_the_engine_routes_a_fleet(name: PolicyName) -> None:
    router = Routed(make_policy(name), 512)
    chosen = {router.pick(request, 3) for request in conversations(8, 2)}
    assert chosen == {0, 1, 2}
