"""One contract for every policy, and what each one alone promises."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from engine.routing.book import Book
from engine.routing.choose import POLICIES, PolicyName, make_policy
from engine.routing.cost import CostModel
from engine.routing.ports import NO_OVERLAP, Overlap, RouteRequest, WorkerLoad

AWARE: tuple[PolicyName, ...] = ("prefix", "session")
NAMES = st.lists(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)
TOKENS = st.integers(0, 50_000)


def _rounds(chance: random.Random) -> list[tuple[RouteRequest, list[WorkerLoad]]]:
    """Requests with the workers of that moment; workers come and go."""
    names = [f"w{number}" for number in range(chance.randint(1, 6))]
    return [(_request(chance, names, turn), _loads(chance, names)) for turn in range(chance.randint(1, 12))]


def _tokens(chance: random.Random) -> int:
    return chance.choice([0, 1, chance.randint(0, 50_000)])


def _loads(chance: random.Random, names: list[str]) -> list[WorkerLoad]:
    return [
        WorkerLoad(
            name,
            prefill_tokens=_tokens(chance),
            decode_tokens=_tokens(chance),
            recent_tokens=_tokens(chance),
            speed=chance.choice([0.5, 1.0, 4.0]),
            joules_per_token=chance.choice([None, 0.0, 3.5]),
        )
        for name in chance.sample(names, chance.randint(1, len(names)))
    ]


def _request(chance: random.Random, names: list[str], turn: int) -> RouteRequest:
    tiers = ("device", "host", "disk", "shared", "a tier of tomorrow")
    overlaps = {
        name: Overlap({chance.choice(tiers): _tokens(chance)}, exact=chance.random() < 0.5)
        for name in chance.sample(names, chance.randint(0, len(names)))
    }
    session, key = chance.choice([None, "", "s", "t", "\ud800"]), chance.choice([b"", b"k", b"l"])
    return RouteRequest(_tokens(chance), Seconds(float(turn)), session, key, _tokens(chance), overlaps)


@given(seed=st.integers(0, 2**32), order=st.integers(-5, 5))
@settings(deadline=None)
def test_every_request_goes_to_a_worker_that_may_take_it_and_the_same_way_again(seed: int, order: int) -> None:
    turns = _rounds(random.Random(seed))
    for name in POLICIES:
        first, second = (make_policy(name, CostModel(joules=1.0), seed=order) for _ in range(2))
        for request, workers in turns:
            choice = first.choose(request, workers)
            assert choice.worker in {worker.name for worker in workers}
            assert choice.cached_tokens >= 0
            assert second.choose(request, workers) == choice


@pytest.mark.parametrize("name", POLICIES)
@given(names=NAMES, seed=st.integers(0, 2**32), keyed=st.booleans())
@settings(deadline=None, max_examples=25)
def test_nobody_starves(name: PolicyName, names: list[str], seed: int, keyed: bool) -> None:
    """Every worker gets work when unrelated requests pile up, each with a session, or a beginning, of its own."""
    sizes = random.Random(seed).choices(range(1, 2000), k=40)
    policy, book, now = make_policy(name), Book(), Seconds(0.0)
    got: Counter[str] = Counter()
    for number, size in enumerate(sizes):
        session = str(number) if keyed else None
        choice = policy.choose(RouteRequest(size, now, session), book.loads(names, now))
        book.sent(choice.worker, size, 0, now)
        got[choice.worker] += 1
    assert set(got) == set(names)


@pytest.mark.parametrize("name", POLICIES)
def test_an_idle_fleet_takes_turns_for_requests_that_nothing_tells_apart(name: PolicyName) -> None:
    policy, workers = make_policy(name), [WorkerLoad(worker) for worker in "abc"]
    got = [policy.choose(RouteRequest(10, Seconds(0.0)), workers).worker for _ in range(6)]
    assert Counter(got) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("name", ["least-loaded", "prefix", "session"])
@given(first=TOKENS, second=TOKENS)
@settings(max_examples=30)
def test_of_two_that_hold_nothing_the_less_loaded_is_chosen(name: PolicyName, first: int, second: int) -> None:
    workers = [WorkerLoad("a", prefill_tokens=first), WorkerLoad("b", prefill_tokens=second)]
    chosen = make_policy(name).choose(RouteRequest(10, Seconds(0.0), key=b"k"), workers).worker
    if first != second:
        assert chosen == ("a" if first < second else "b")


@pytest.mark.parametrize("name", AWARE)
@settings(deadline=None, max_examples=30)
@given(names=NAMES, sessions=st.integers(1, 20), leaving=st.integers(0, 5))
def test_when_a_worker_leaves_only_its_own_sessions_move(
    name: PolicyName, names: list[str], sessions: int, leaving: int
) -> None:
    policy = make_policy(name)
    gone = names[leaving % len(names)]
    stay = [WorkerLoad(worker) for worker in names if worker != gone]

    def place(number: int, workers: Sequence[WorkerLoad], held: dict[str, Overlap]) -> str:
        key = str(number).encode()
        return policy.choose(RouteRequest(100, Seconds(0.0), str(number), key, 0, held), workers).worker

    before = {number: place(number, [WorkerLoad(worker) for worker in names], {}) for number in range(sessions)}
    if stay:
        held = {number: {home: Overlap({"device": 100})} for number, home in before.items()}
        after = {number: place(number, stay, held[number]) for number in before}
        assert all(after[number] == home for number, home in before.items() if home != gone)
        assert all(home != gone for home in after.values())


@pytest.mark.parametrize("name", AWARE)
@given(
    cached=st.integers(0, 10_000), more=st.integers(0, 10_000), busy=st.integers(0, 20_000), credit=st.floats(0.1, 1.0)
)
def test_a_session_stays_exactly_as_long_as_that_costs_less_than_its_cache_is_worth(
    name: PolicyName, cached: int, more: int, busy: int, credit: float
) -> None:
    policy = make_policy(name, CostModel({"device": credit}))
    idle = [WorkerLoad("home")]
    policy.choose(RouteRequest(cached, Seconds(0.0), "s"), idle)
    held = {"home": Overlap({"device": cached})} if name == "prefix" else {}
    request = RouteRequest(cached + more, Seconds(1.0), "s", b"", 0, held)
    chosen = policy.choose(request, [WorkerLoad("other"), WorkerLoad("home", prefill_tokens=busy)])
    worth = credit * cached
    if busy < worth - 1e-6:
        assert (chosen.worker, chosen.cached_tokens) == ("home", cached)
    elif busy > worth + 1e-6:
        assert (chosen.worker, chosen.cached_tokens) == ("other", 0)


def test_a_session_trusts_the_engine_more_than_its_own_memory() -> None:
    policy = make_policy("session")
    policy.choose(RouteRequest(1000, Seconds(0.0), "s"), [WorkerLoad("home")])
    evicted = {"home": Overlap({}, exact=True), "other": Overlap({"device": 500}, exact=True)}
    again = RouteRequest(1100, Seconds(1.0), "s", overlaps=evicted)
    assert policy.choose(again, [WorkerLoad("home"), WorkerLoad("other")]).worker == "other"


def test_a_session_does_not_credit_a_prompt_that_is_known_to_be_another() -> None:
    """A sub-agent of the session may begin with a prompt of its own, which any worker can take."""
    policy = make_policy("session")
    policy.choose(RouteRequest(1000, Seconds(0.0), "s", b"main"), [WorkerLoad("home")])
    busy, free = WorkerLoad("home", prefill_tokens=10), WorkerLoad("other")
    assert policy.choose(RouteRequest(1000, Seconds(1.0), "s", b"sub"), [busy, free]).worker == "other"


def test_an_idle_session_is_forgotten() -> None:
    policy = make_policy("session")
    busy, free = WorkerLoad("home", prefill_tokens=50), WorkerLoad("other")
    for later, expected in ((10.0, "home"), (10_000.0, "other")):
        policy.choose(RouteRequest(1000, Seconds(0.0), "s"), [busy])
        assert policy.choose(RouteRequest(1000, Seconds(later), "s"), [busy, free]).worker == expected


def test_prefixes_in_lower_tiers_are_worth_less() -> None:
    overlaps = {"a": Overlap({"disk": 1000}), "b": Overlap({"host": 900}), "c": Overlap({"device": 600})}
    request = RouteRequest(1000, Seconds(0.0), overlaps=overlaps)
    workers = [WorkerLoad(name) for name in "abc"]
    assert make_policy("prefix").choose(request, workers).worker == "b"
    assert make_policy("prefix", CostModel({"device": 1.0})).choose(request, workers).worker == "c"


def test_joules_count_where_they_are_asked_for() -> None:
    workers = [WorkerLoad("fast", joules_per_token=2.0), WorkerLoad("thrifty", prefill_tokens=10, joules_per_token=1.0)]
    request = RouteRequest(100, Seconds(0.0), key=b"k", output_tokens=50)
    assert make_policy("prefix").choose(request, workers).worker == "fast"
    assert make_policy("prefix", CostModel(joules=1.0)).choose(request, workers).worker == "thrifty"


def test_a_faster_worker_takes_more() -> None:
    policy, now = make_policy("least-loaded"), Seconds(0.0)
    loads: dict[str, float] = {"slow": 0.0, "fast": 0.0}
    for _ in range(400):
        workers = [WorkerLoad("slow", loads["slow"]), WorkerLoad("fast", loads["fast"], speed=3.0)]
        loads[policy.choose(RouteRequest(10, now, key=b"k"), workers).worker] += 10
    assert loads["fast"] / loads["slow"] == pytest.approx(3.0, rel=0.05)


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'best'.*round-robin, least-loaded, prefix, session"):
        make_policy("best")  # type: ignore[arg-type]


@settings(deadline=None, max_examples=10)
@given(seeds=st.lists(st.integers(), min_size=2, max_size=2, unique=True))
def test_the_seed_decides_where_beginnings_meet(seeds: list[int]) -> None:
    workers = [WorkerLoad(name) for name in "abcd"]

    def homes(seed: int) -> list[str]:
        choose: Callable[..., object] = make_policy("prefix", seed=seed % 2**63).choose
        keys = (bytes([key]) for key in range(64))
        return [choose(RouteRequest(9, Seconds(0.0), key=key), workers).worker for key in keys]  # type: ignore[attr-defined]

    assert homes(seeds[0]) == homes(seeds[0])
    if seeds[0] % 2**63 != seeds[1] % 2**63:
        assert homes(seeds[0]) != homes(seeds[1])


def test_nothing_held_is_nothing() -> None:
    assert NO_OVERLAP.tokens == 0
