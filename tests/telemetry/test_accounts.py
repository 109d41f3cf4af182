"""Whose the energy is: tenants, sessions, tiers, and idle time under each policy; nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_text

from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError
from energyopt.core.records import FinishReason, Phase, RequestRecord, StepRecord, StepShare
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds
from telemetry import ledger as ledger_module
from telemetry.cost_model import CostModel, FittedWeight
from telemetry.curve import EnergyCurve
from telemetry.exporter import Exporter
from telemetry.fake import FakeSource
from telemetry.idle import IdlePolicy, ReservedIdle, SeparateIdle, SharedIdle, idle_policy
from telemetry.ledger import Ledger
from telemetry.meter import Meter
from telemetry.owners import ANONYMOUS, NOBODY, OTHER, OwnerBook
from telemetry.ports import Sample, SensorId

GPU = SensorId("GPU-fake", Scope.GPU)
WATTS = 100.0


def curve(seconds: float = 60.0) -> EnergyCurve:
    made = EnergyCurve(GPU, Source.COUNTER)
    for tick in range(round(seconds * 10) + 1):
        made.add(Sample(at=Seconds(tick / 10), counter=Joules(1 + WATTS * tick / 10)))
    return made


def step(start: float, end: float, *requests: str, phase: Phase = Phase.DECODE, **cached: int) -> StepRecord:
    shares = tuple(StepShare(request, phase, 1, 0, cached) for request in requests)
    return StepRecord(Seconds(start), Seconds(end), ("GPU-fake",), shares)


def joules(amount: int) -> float:
    return amount / 1e9


def ledger_with(idle: IdlePolicy | None = None, **owners: str) -> Ledger:
    ledger = Ledger([curve()], idle=idle, tenants=("search", "chat"))
    for request, tenant in owners.items():
        ledger.note(request, tenant=tenant)
    return ledger


def test_energy_by_tenant_and_phase() -> None:
    ledger = ledger_with(a="search", b="chat", c="stranger")
    ledger.record(step(1, 2, "a", phase=Phase.PREFILL))
    ledger.record(step(2, 4, "a", "b"))
    ledger.record(step(4, 5, "c", "nameless"))
    ledger.settle()
    used = {(use.tenant, use.phase): joules(part) for use, part in ledger.book().used.items()}
    assert used == pytest.approx(
        {
            ("search", Phase.PREFILL): 100.0,
            ("search", Phase.DECODE): 100.0,
            ("chat", Phase.DECODE): 100.0,
            (OTHER, Phase.DECODE): 50.0,
            (ANONYMOUS, Phase.DECODE): 50.0,
        }
    )
    assert {use.method for use in ledger.book().used} == {"compute_weight"}


def test_a_thousand_unknown_tenants_make_one_label() -> None:
    book = OwnerBook(["known"], limit=500)
    for number in range(1000):
        book.note(f"r{number}", f"tenant-{number}", "s" * 10_000)
    assert len(book) == 500
    assert {book.of(f"r{number}").tenant for number in range(1000)} == {OTHER, ANONYMOUS}
    assert len(book.of("r999").session or "") == 256


def test_energy_of_a_session_over_its_requests() -> None:
    ledger = ledger_with()
    for request, tenant in (("a", "search"), ("b", "search"), ("c", "chat")):
        ledger.note(request, tenant=tenant, session="s1")
    ledger.record(step(1, 2, "a"))
    ledger.record(step(2, 3, "b", "c"))
    ledger.settle()
    assert ledger.session_energy("search", "s1") == pytest.approx(150.0)
    assert ledger.session_energy("chat", "s1") == pytest.approx(50.0)  # the same word of another tenant
    assert ledger.session_energy("chat", "s2") is None


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_SESSIONS", 10)
    ledger = ledger_with()
    for number in range(50):
        ledger.note(f"r{number}", session=f"s{number}")
        ledger.record(step(number, number + 0.5, f"r{number}"))
    ledger.settle()
    assert len(ledger._sessions) == 10
    assert ledger.session_energy(ANONYMOUS, "s49") == pytest.approx(50.0)


def test_energy_by_cache_tier() -> None:
    """A step whose time is half loading from the host: half of its joules are the host tier's."""
    model = CostModel()
    weigh = FittedWeight(model)
    coefficients = [0.0] * 8
    coefficients[2], coefficients[5] = 1e-3, 1e-5  # seconds per decoded token, per token loaded from the host
    weigh._used = tuple(coefficients)
    ledger = Ledger([curve()], weigh)
    ledger.record(step(1, 2, "a", host=100, device=500))
    ledger.settle()
    tiers = {tier: joules(part) for tier, part in ledger.book().tiers.items()}
    assert tiers == pytest.approx({"computed": 50.0, "host": 50.0})
    assert {use.method for use in ledger.book().used} == {"fitted_cost"}


USED = {"search": 3_000, "chat": 1_000}


class TestIdle:
    """kepler#1194: the idle split was wrong, and nobody could say by which rule it was made."""

    def test_separate(self) -> None:
        assert SeparateIdle().divide(100, USED) == {NOBODY: 100}

    def test_by_share_of_use(self) -> None:
        assert SharedIdle().divide(100, USED) == {"search": 75, "chat": 25}
        assert SharedIdle().divide(100, {}) == {NOBODY: 100}

    def test_by_reservation(self) -> None:
        policy = ReservedIdle({"search": 0.5, "chat": 0.25})
        assert policy.divide(100, {}) == {"search": 50, "chat": 25, NOBODY: 25}

    @pytest.mark.parametrize("shares", [{}, {"a": 0.0}, {"a": -1.0}, {"a": float("nan")}, {"a": 0.7, "b": 0.4}])
    def test_reservations_that_cannot_be(self, shares: dict[str, float]) -> None:
        with pytest.raises(ConfigError, match="not allowed"):
            ReservedIdle(shares)

    def test_by_name(self) -> None:
        assert idle_policy("separate").name == "separate"
        assert idle_policy("share").name == "share"
        assert idle_policy("reservation", {"a": 1.0}).name == "reservation"
        with pytest.raises(ConfigError, match="expected one of separate, share, reservation"):
            idle_policy("all")
        with pytest.raises(ConfigError, match="used by the idle policy reservation only"):
            idle_policy("share", {"a": 1.0})

    @given(
        amount=st.integers(0, 10**18),
        used=st.dictionaries(st.sampled_from("abcde"), st.integers(0, 10**18)),
        shares=st.dictionaries(st.sampled_from("abcde"), st.floats(0.001, 0.2), min_size=1),
    )
    def test_every_policy_conserves(self, amount: int, used: dict[str, int], shares: dict[str, float]) -> None:
        for policy in (SeparateIdle(), SharedIdle(), ReservedIdle(shares)):
            parts = policy.divide(amount, used)
            assert sum(parts.values()) == amount
            assert all(part >= 0 for part in parts.values())

    def test_in_the_account(self) -> None:
        ledger = ledger_with(SharedIdle(), a="search", b="chat")
        ledger.record(step(1, 4, "a"))
        ledger.record(step(6, 7, "b"))
        ledger.settle()
        idle = {tenant: joules(part) for tenant, part in ledger.book().idle.items()}
        assert idle == pytest.approx({"search": 0.75 * 2590, "chat": 0.25 * 2590})


@settings(max_examples=40, deadline=None)
@given(
    plan=st.lists(
        st.tuples(st.floats(0, 3), st.floats(0, 2), st.lists(st.sampled_from("abcxyz"), max_size=4)), max_size=20
    ),
    policy=st.sampled_from([SeparateIdle(), SharedIdle(), ReservedIdle({"search": 0.3, "new": 0.1})]),
)
def test_over_all_owners_the_book_equals_the_sensor(
    plan: list[tuple[float, float, list[str]]], policy: IdlePolicy
) -> None:
    """kepler#1837: the sum over processes drifts from the node; kepler#923: GPU power lands in "system"."""
    sensor = curve()
    ledger = Ledger([sensor], idle=policy, tenants=("search", "chat"))
    for request, tenant in (("a", "search"), ("b", "chat"), ("c", "evil")):
        ledger.note(request, tenant=tenant, session=request)
    at = 0.0
    for gap, length, requests in plan:
        ledger.record(step(at + gap, at + gap + length, *requests))
        at += gap + length / 2
        ledger.settle()
    until = ledger._accounts[0].until
    book = ledger.book()
    span = sensor.coverage
    assert span is not None
    assert book.total == (0 if until is None else sensor.nanojoules(until) - sensor.nanojoules(span[0]))
    assert sum(book.tiers.values()) == sum(book.used.values())
    assert all(part >= 0 for part in (*book.used.values(), *book.idle.values(), book.overhead))
    assert {use.tenant for use in book.used} <= {"search", "chat", OTHER, ANONYMOUS}


def test_a_report_on_everybody_and_on_one_tenant() -> None:
    ledger = ledger_with(SharedIdle())
    for request, tenant in (("a", "search"), ("b", "chat")):
        ledger.note(request, tenant=tenant, session=f"s-{request}")
    ledger.record(step(1, 2, "a", phase=Phase.PREFILL))
    ledger.record(step(2, 5, "a", "b"))
    ledger.record(step(5, 5.5))
    whole = ledger.report()
    assert whole.total == pytest.approx(2990.0)
    assert whole.overhead == pytest.approx(50.0)
    parts = [(one.prefill, one.decode, one.idle) for one in whole.tenants]
    assert sum(map(sum, parts)) + (whole.overhead or 0) == pytest.approx(whole.total)
    assert [one.tenant for one in whole.tenants] == ["chat", "search", NOBODY]
    assert {one.session: one.joules for one in whole.sessions} == pytest.approx({"s-a": 250.0, "s-b": 150.0})
    assert whole.methods == pytest.approx({"compute_weight": 400.0})
    assert whole.tiers == pytest.approx({"computed": 400.0})
    assert (whole.idle_policy, whole.sources, whole.fit) == ("share", (Source.COUNTER,), None)

    mine = ledger.report("chat")
    (own,) = mine.tenants
    assert own.tenant == "chat"
    assert own.prefill == 0.0
    assert own.decode == pytest.approx(150.0)
    assert (mine.total, mine.overhead, mine.tiers) == (None, None, {})
    assert [one.session for one in mine.sessions] == ["s-b"]
    assert mine.methods == pytest.approx({"compute_weight": 150.0})
    assert "search" not in mine.model_dump_json()


def test_a_report_says_how_good_the_fit_is() -> None:
    ledger = Ledger([curve()], FittedWeight())
    ledger.record(step(1, 2, "a"))
    fit = ledger.report().fit
    assert fit is not None
    assert (fit.used, fit.steps, fit.error) == (False, 1, None)
    assert "decode_token" in fit.seconds


def test_metrics_by_tenant() -> None:
    clock = FakeClock()
    meter = Meter([FakeSource(clock)], clock, tenants=("search",), idle=ReservedIdle({"search": 0.5}))
    for _ in range(100):
        clock.advance(0.05)
        meter.sampler.step()
    meter.note("r", tenant="search", session="s")
    meter.record(step(1.0, 2.0, "r"))
    meter.record(step(3.0, 4.0))
    exporter = Exporter(meter, "m")
    record = RequestRecord("r", Seconds(1), Seconds(2), 1, 0, 1, FinishReason.LENGTH)
    exporter.observe_request(record)
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parse_text(exporter.render()[0].decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))

    def only(name: str, **labels: Any) -> float:
        (value,) = [value for found_labels, value in found[name] if found_labels.items() >= labels.items()]
        return value

    attributed = "energyopt_attributed_energy_joules_total"
    assert only(attributed, tenant="search", phase="decode", method="compute_weight") == pytest.approx(300.0)
    assert only(attributed, tenant=NOBODY, phase="overhead") == pytest.approx(300.0)
    half = only(attributed, tenant="search", phase="idle", method="reservation")
    assert half == only(attributed, tenant=NOBODY, phase="idle", method="reservation") > 100
    assert only("energyopt_request_energy_joules_sum", tenant="search", model="m") == pytest.approx(300.0)
    assert only("energyopt_request_energy_by_tier_joules_total", tier="computed") == pytest.approx(300.0)
