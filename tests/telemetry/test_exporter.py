"""What a scrape shows: names from the catalogue, units, no driver call, absent where unknown."""

from __future__ import annotations

import re
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from api.router.metrics import RouterCollector, RouterPage
from api.router.router import Router
from api.router.settings import BackendConfig, RouterConfig
from energyopt.core.clock import FakeClock
from energyopt.core.config import PowerConfig
from energyopt.core.footprint import FootprintConfig
from energyopt.core.records import FinishReason, Phase, RequestRecord, StepRecord, StepShare
from energyopt.core.results import EnergyTotal, Scope, Source
from energyopt.core.slo import Slo
from energyopt.core.units import Bytes, Hertz, Joules, Seconds, Watts
from energyopt.store.energy_writer import WriterStats
from engine.idle import SleepCounts
from engine.speculative.ports import DraftCounts
from telemetry.agent_metrics import AgentCollector, ChunkCounts, CollectorHealth
from telemetry.catalog import CATALOG, PREFIX
from telemetry.control.fake import FakeChannel
from telemetry.control.governor import Governor, Rules
from telemetry.control.leased import LeasedPower
from telemetry.control.loop import Actuator, GovernorLoop
from telemetry.control.metrics import ControlCollector
from telemetry.control.window import LatencyWindow
from telemetry.cost_model import FittedWeight
from telemetry.economy_metrics import EconomyCollector
from telemetry.exporter import Exporter
from telemetry.fake import FakeSource
from telemetry.fake_status import FakeStatus
from telemetry.footprint import Rates
from telemetry.meter import Meter
from telemetry.ports import SensorId
from telemetry.sink_metrics import StoreCollector
from telemetry.status import DeviceStatus, Throttle


@dataclass(frozen=True)
class Tier:
    tier: str
    hits: int = 30
    loads: int = 20
    stores: int = 40
    load_bytes: int = 2000
    store_bytes: int = 4000
    load_seconds: float = 0.5
    store_seconds: float = 0.25
    evictions: int = 3
    failures: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Economy:
    saved: dict[str, float] = field(default_factory=lambda: {"device": 30.0, "host": 20.0})
    spent: dict[tuple[str, str], float] = field(default_factory=lambda: {("host", "counter"): 2.5})


@dataclass(frozen=True)
class Stats:
    running: int = 3
    waiting: int = 2
    blocks_used: int = 25
    blocks_total: int = 100
    prompt_tokens: int = 1000
    output_tokens: int = 400
    preemptions: int = 1
    steps: int = 50
    step_seconds: float = 2.5
    loading: int = 1
    load_failures: int = 4
    sleep: SleepCounts | None = field(
        default_factory=lambda: SleepCounts(True, 3, 40.0, Bytes(2**30), Joules(120.0), Joules(6.0), 30.0, 2)
    )
    drafts: DraftCounts | None = field(
        default_factory=lambda: DraftCounts(drafts=5, drafted=20, accepted=7, depth=4, by_place=Counter({0: 4, 1: 3}))
    )
    min_hit_tokens: int | None = 256
    retention_interval: int | None = 0
    tiers: tuple[Tier, ...] = (Tier("host", failures={"corrupt": 1}), Tier("disk"))
    prompt_tokens_by_source: dict[str, int] = field(
        default_factory=lambda: {"local_compute": 700, "device": 200, "host": 60, "shared": 40}
    )


RECORD = RequestRecord(
    request_id="r",
    arrival=Seconds(10.0),
    end=Seconds(12.0),
    prompt_tokens=100,
    cached_tokens=20,
    output_tokens=3,
    finish_reason=FinishReason.LENGTH,
    token_times=(Seconds(10.5), Seconds(10.6), Seconds(12.0)),
    scheduled=Seconds(10.2),
)


def page(exporter: Exporter) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text, kind = exporter.render()
    assert kind.startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(text.decode())
        for sample in family.samples
    }


def at(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def running(clock: FakeClock, *sources: FakeSource, seconds: float = 5.0, **options: Any) -> Meter:
    meter = Meter(sources, clock, **options)
    for _ in range(round(seconds / 0.05)):
        clock.advance(0.05)
        meter.sampler.step()
    return meter


def test_sensors_are_rendered_in_base_units_by_uuid(clock: FakeClock) -> None:
    found = page(Exporter(running(clock, FakeSource(clock, tick=0.1)), "m"))
    name = {"gpu_uuid": "GPU-fake", "scope": "gpu"}
    joules = found[at("energyopt_gpu_energy_joules_total", **name, source="counter")]
    assert joules == pytest.approx(300 * 4.85, rel=0.03)
    assert found[at("energyopt_gpu_power_watts", **name, kind="unknown")] == 300.0
    assert found[at("energyopt_gpu_up", **name)] == 1.0
    assert found[at("energyopt_gpu_sample_age_seconds", **name)] < 0.06
    assert found[at("energyopt_gpu_sensor_tick_seconds", **name)] == pytest.approx(0.1, abs=0.01)
    assert found[at("energyopt_gpu_energy_crosscheck_ratio", **name)] == pytest.approx(1.0, rel=0.05)


def test_cpu_domains_are_named_by_package(clock: FakeClock) -> None:
    sources = [FakeSource(clock, sensor=SensorId("cpu:1", scope)) for scope in (Scope.CPU_PACKAGE, Scope.DRAM)]
    found = page(Exporter(running(clock, *sources), "m"))
    for domain in ("package", "dram"):
        assert at("energyopt_cpu_energy_joules_total", package="1", domain=domain, source="counter") in found


@pytest.mark.parametrize(("interval", "shown"), [(None, None), (0, 0.0), (32768, 32768.0)])
def test_the_effective_cache_settings_are_visible(clock: FakeClock, interval: int | None, shown: float | None) -> None:
    """vllm#51198: a retention option that silently did nothing. Dense keeping has no interval, so it has no series."""
    found = page(Exporter(running(clock, FakeSource(clock)), "m", lambda: Stats(retention_interval=interval)))
    assert found[at("energyopt_kv_min_hit_tokens", model="m")] == 256
    assert found.get(at("energyopt_kv_retention_interval_tokens", model="m")) == shown
    assert found[at("energyopt_requests_loading", model="m")] == 1
    assert found[at("energyopt_kv_load_failures_total", model="m")] == 4


def test_guesses_are_counted_by_outcome_and_place(clock: FakeClock) -> None:
    found = page(Exporter(running(clock, FakeSource(clock)), "m", Stats))
    vllm = {"model_name": "m", "engine": "0"}
    assert found[at("energyopt_draft_tokens_total", model="m", outcome="accepted")] == 7
    assert found[at("energyopt_draft_tokens_total", model="m", outcome="rejected")] == 13
    assert found[at("energyopt_draft_depth", model="m")] == 4
    assert found[at("vllm:spec_decode_num_drafts_total", **vllm)] == 5
    assert found[at("vllm:spec_decode_num_draft_tokens_total", **vllm)] == 20
    assert found[at("vllm:spec_decode_num_accepted_tokens_total", **vllm)] == 7
    assert found[at("vllm:spec_decode_num_accepted_tokens_per_pos_total", **vllm, position="1")] == 3
    none = page(Exporter(running(clock, FakeSource(clock)), "m", lambda: Stats(drafts=None)))
    assert not [name for name, _ in none if "draft" in name]


def test_a_sleep_is_told_and_what_was_not_measured_is_not(clock: FakeClock) -> None:
    found = page(Exporter(running(clock, FakeSource(clock)), "m", Stats))
    assert found[at("energyopt_asleep", model="m")] == 1
    assert found[at("energyopt_sleeps_total", model="m")] == 3
    assert found[at("energyopt_asleep_seconds_total", model="m")] == 40
    assert found[at("energyopt_sleep_freed_bytes", model="m")] == 2**30
    assert found[at("energyopt_sleep_saved_joules", model="m", source="estimated")] == 120
    assert found[at("energyopt_sleep_saved_error_joules", model="m", source="estimated")] == 6
    assert found[at("energyopt_sleep_measured_seconds_total", model="m")] == 30
    assert found[at("energyopt_sleep_wakes_refused_total", model="m")] == 2
    unknown = page(Exporter(running(clock, FakeSource(clock)), "m", lambda: Stats(sleep=SleepCounts())))
    assert not [name for name, _ in unknown if "sleep_saved" in name or "freed" in name]
    none = page(Exporter(running(clock, FakeSource(clock)), "m", lambda: Stats(sleep=None)))
    assert not [name for name, _ in none if "sleep" in name]


def test_the_parts_of_a_request_are_timed_as_far_as_it_came(clock: FakeClock) -> None:
    exporter = Exporter(running(clock, FakeSource(clock)), "m", Stats)
    for record in (RECORD, replace(RECORD, token_times=()), replace(RECORD, scheduled=None)):
        exporter.observe_request(record)
    found, vllm = page(exporter), {"model_name": "m", "engine": "0"}
    want = {"queue": (0.4, 2), "prefill": (0.3, 1), "decode": (1.5, 1), "inference": (1.8, 1)}
    for part, (seconds, count) in want.items():
        assert found[at(f"vllm:request_{part}_time_seconds_sum", **vllm)] == pytest.approx(seconds)
        assert found[at(f"vllm:request_{part}_time_seconds_count", **vllm)] == count


def test_a_scrape_reads_no_sensor(clock: FakeClock) -> None:
    source = FakeSource(clock)
    exporter = Exporter(running(clock, source), "m", Stats)
    reads = source.reads
    for _ in range(5):
        exporter.render()
    assert source.reads == reads


def test_a_sensor_that_is_down_shows_no_power(clock: FakeClock) -> None:
    """dcgm-exporter#700, nvidia-container-toolkit#48: 0 or the last value for ever."""
    broken = threading.Event()
    source = FakeSource(clock, fault=lambda sample: None if broken.is_set() else sample)
    meter = running(clock, source)
    broken.set()
    meter.sampler.poll()
    found = page(Exporter(meter, "m"))
    name = {"gpu_uuid": "GPU-fake", "scope": "gpu"}
    assert found[at("energyopt_gpu_up", **name)] == 0.0
    assert found[at("energyopt_gpu_read_errors_total", **name)] == 1.0
    assert not [key for key in found if key[0] == "energyopt_gpu_power_watts"]


def test_device_status_is_rendered_in_base_units(clock: FakeClock) -> None:
    found = page(Exporter(running(clock, FakeSource(clock), statuses=[FakeStatus(clock)]), "m"))
    gpu = {"gpu_uuid": "GPU-fake"}
    assert found[at("energyopt_gpu_power_limit_watts", **gpu, kind="enforced")] == 450.0
    assert found[at("energyopt_gpu_clock_hertz", **gpu, domain="sm")] == 1.41e9
    assert found[at("energyopt_gpu_temperature_celsius", **gpu, sensor="gpu")] == 54.0
    assert found[at("energyopt_gpu_utilization_ratio", **gpu, unit="compute")] == 0.9
    assert found[at("energyopt_gpu_throttled", **gpu, reason="power_cap")] == 1.0
    assert found[at("energyopt_gpu_throttled", **gpu, reason="thermal_hw")] == 0.0
    assert found[at("energyopt_gpu_partitions", **gpu)] == 7.0
    powers = {
        (dict(labels)["scope"], dict(labels)["kind"]): watts
        for (name, labels), watts in found.items()
        if name == "energyopt_gpu_power_watts"
    }
    assert powers == {("gpu", "unknown"): 300.0, ("gpu", "average"): 290.0, ("memory", "average"): 40.0}


def test_what_a_device_does_not_tell_has_no_series(clock: FakeClock) -> None:
    """dcgm-exporter#700: 0 for unknown."""
    bare = FakeStatus(clock, status=DeviceStatus(at=Seconds(0.0)))
    found = page(Exporter(running(clock, FakeSource(clock), statuses=[bare]), "m"))
    told = {name for name, _ in found}
    assert "energyopt_gpu_info" in told
    for name in ("power_limit_watts", "clock_hertz", "throttled", "temperature_celsius", "utilization_ratio"):
        assert f"energyopt_gpu_{name}" not in told


def test_a_device_that_stops_answering_keeps_no_old_value(clock: FakeClock) -> None:
    broken = threading.Event()
    status = FakeStatus(clock, change=lambda seen: None if broken.is_set() else seen)
    meter = running(clock, FakeSource(clock), statuses=[status])
    broken.set()
    meter.sampler.poll()
    found = page(Exporter(meter, "m"))
    assert found[at("energyopt_gpu_status_up", gpu_uuid="GPU-fake")] == 0.0
    assert not [key for key in found if key[0] == "energyopt_gpu_temperature_celsius"]


def test_throttle_time_never_falls_when_the_driver_restarts_its_counter(clock: FakeClock) -> None:
    """dcgm-exporter#417: a counter that decreases."""
    spent = iter([10.0, 13.0, 1.0, 2.0])
    status = FakeStatus(
        clock, change=lambda seen: replace(seen, throttle_time={Throttle.POWER_CAP: Seconds(next(spent))})
    )
    meter = running(clock, FakeSource(clock), seconds=0.0, statuses=[status])
    exporter, values = Exporter(meter, "m"), []
    for _ in range(4):
        meter.sampler.poll()
        found = page(exporter)
        values.append(found[at("energyopt_gpu_throttle_seconds_total", gpu_uuid="GPU-fake", reason="power_cap")])
    assert values == [0.0, 3.0, 4.0, 5.0]


def test_without_sensors_there_is_no_energy_series(clock: FakeClock) -> None:
    found = page(Exporter(Meter((), clock), "m"))
    assert not [key for key in found if "joules" in key[0] or "watts" in key[0]]


def test_attributed_energy_sums_to_the_sensor(clock: FakeClock) -> None:
    """kepler#1837: the sum over processes drifts from the node."""
    meter = running(clock, FakeSource(clock))
    share = StepShare("a", Phase.DECODE, 1, 0)
    meter.record(StepRecord(Seconds(1), Seconds(4), ("GPU-fake",), (share,)))
    found = page(Exporter(meter, "m"))
    parts = {
        dict(labels)["phase"]: value
        for (name, labels), value in found.items()
        if name == "energyopt_attributed_energy_joules_total"
    }
    assert parts["decode"] == pytest.approx(900.0)
    curve = meter.channels[0].curve
    span = curve.coverage
    assert span is not None
    assert sum(parts.values()) == pytest.approx(curve.energy(Seconds(4)) - curve.energy(span[0]))


def test_requests_under_own_and_vllm_names(clock: FakeClock) -> None:
    exporter = Exporter(Meter((), clock), "m", Stats)
    energy = EnergyTotal(joules=Joules(12.0), error=Joules(1.0), sources=(Source.COUNTER, Source.INTEGRATED))
    exporter.serving.observe_request(RECORD, energy)
    found = page(exporter)
    vllm = {"model_name": "m", "engine": "0"}
    assert found[at("energyopt_requests_total", model="m", finish_reason="length")] == 1
    assert found[at("vllm:request_success_total", **vllm, finished_reason="length")] == 1
    assert found[at("energyopt_time_to_first_token_seconds_sum", model="m")] == pytest.approx(0.5)
    assert found[at("vllm:time_to_first_token_seconds_sum", **vllm)] == pytest.approx(0.5)
    assert found[at("energyopt_inter_token_latency_seconds_count", model="m")] == 2
    assert found[at("vllm:e2e_request_latency_seconds_sum", **vllm)] == pytest.approx(2.0)
    assert found[at("vllm:request_time_per_output_token_seconds_sum", **vllm)] == pytest.approx(0.75)
    assert found[at("vllm:request_generation_tokens_sum", **vllm)] == 3
    labels = {"model": "m", "tenant": "anonymous", "source": "counter+integrated"}
    assert found[at("energyopt_request_energy_joules_sum", **labels)] == 12.0


def test_a_finished_request_brings_its_own_energy_without_a_driver_call(clock: FakeClock) -> None:
    source = FakeSource(clock)
    meter = running(clock, source)
    share = StepShare("r", Phase.DECODE, 1, 0)
    meter.record(StepRecord(Seconds(1), Seconds(3), ("GPU-fake",), (share,)))
    exporter, reads = Exporter(meter, "m"), source.reads
    exporter.observe_request(RECORD)
    assert source.reads == reads
    labels = {"model": "m", "tenant": "anonymous", "source": "counter"}
    assert page(exporter)[at("energyopt_request_energy_joules_sum", **labels)] == 600.0


def test_a_failed_request_is_counted_but_has_no_latency(clock: FakeClock) -> None:
    exporter = Exporter(Meter((), clock), "m")
    failed = RequestRecord("r", Seconds(0), Seconds(1), 10, 0, 0, FinishReason.ERROR)
    exporter.serving.observe_request(failed)
    found = page(exporter)
    assert found[at("energyopt_requests_total", model="m", finish_reason="error")] == 1
    assert not [key for key in found if key[0].endswith(("_seconds_count", "joules_count"))]
    assert not [key for key in found if key[0] == "vllm:request_success_total"]


def test_engine_stats_under_own_and_vllm_names(clock: FakeClock) -> None:
    found = page(Exporter(Meter((), clock), "m", Stats))
    vllm = {"model_name": "m", "engine": "0"}
    assert found[at("energyopt_requests_running", model="m")] == found[at("vllm:num_requests_running", **vllm)] == 3
    assert found[at("vllm:kv_cache_usage_perc", **vllm)] == 0.25
    assert found[at("energyopt_tokens_total", model="m", kind="output")] == 400
    by_source = {
        dict(labels)["source"]: value
        for (name, labels), value in found.items()
        if name == "vllm:prompt_tokens_by_source_total"
    }
    assert by_source == {"local_compute": 700, "local_cache_hit": 260, "external_kv_transfer": 40}
    assert sum(by_source.values()) == found[at("vllm:prompt_tokens_total", **vllm)]
    assert found[at("vllm:prompt_tokens_cached_total", **vllm)] == 300


def test_every_tier_has_its_counters_and_the_host_tier_vllms_names(clock: FakeClock) -> None:
    found = page(Exporter(Meter((), clock), "m", Stats))
    wanted = {
        "hit_blocks": 30,
        "loaded_blocks": 20,
        "stored_blocks": 40,
        "loaded_bytes": 2000,
        "stored_bytes": 4000,
        "load_seconds": 0.5,
        "store_seconds": 0.25,
        "evicted_blocks": 3,
    }
    for name, value in wanted.items():
        for tier in ("host", "disk"):
            assert found[at(f"energyopt_kv_tier_{name}_total", model="m", tier=tier)] == value
    failed = [key for key in found if key[0] == "energyopt_kv_tier_failed_blocks_total"]
    assert failed == [at("energyopt_kv_tier_failed_blocks_total", model="m", tier="host", reason="corrupt")]
    vllm = {"model_name": "m", "engine": "0"}
    assert found[at("vllm:kv_offload_total_bytes_total", **vllm, transfer_type="CPU_to_GPU")] == 2000
    assert found[at("vllm:kv_offload_total_time_total", **vllm, transfer_type="GPU_to_CPU")] == 0.25


def test_joules_saved_by_hits_are_estimates_and_joules_of_loads_name_their_source(clock: FakeClock) -> None:
    exporter = Exporter(Meter((), clock), "m")
    exporter.add(EconomyCollector("m", Economy))
    found = page(exporter)
    saved = {"model": "m", "source": "estimated"}
    assert found[at("energyopt_kv_hit_saved_joules_total", **saved, tier="host")] == 20.0
    assert found[at("energyopt_kv_load_joules_total", model="m", tier="host", source="counter")] == 2.5


def test_an_engine_without_tiers_has_no_series_of_them(clock: FakeClock) -> None:
    found = page(Exporter(Meter((), clock), "m", lambda: replace(Stats(), tiers=())))
    assert not [name for name, _ in found if "kv_tier" in name or "offload" in name]


def test_openmetrics_is_served_to_who_asks_and_parses(clock: FakeClock) -> None:
    exporter = Exporter(running(clock, FakeSource(clock)), "m", Stats)
    exporter.serving.observe_request(RECORD)
    text, kind = exporter.render("application/openmetrics-text;version=1.0.0")
    assert "openmetrics" in kind
    assert list(parse_openmetrics(text.decode()))  # type: ignore[no-untyped-call]


def test_everything_published_is_in_the_catalogue(clock: FakeClock) -> None:
    sensors = (FakeSource(clock), FakeSource(clock, sensor=SensorId("cpu:0", Scope.DRAM)))
    weigh = FittedWeight()
    for _ in range(100):
        weigh.observe(StepRecord(Seconds(0), Seconds(1), ("GPU-fake",), (StepShare("a", Phase.DECODE, 1, 0),)))
    rates = Rates(FootprintConfig(pue=1.2, grid=400.0, price_per_kilowatt_hour=0.1), [Scope.GPU])
    meter = running(clock, *sensors, statuses=[FakeStatus(clock)], weigh=weigh)
    exporter = Exporter(meter, "m", Stats, rates=rates, clock=clock)
    exporter.add(EconomyCollector("m", Economy))
    exporter.serving.observe_request(RECORD, EnergyTotal(joules=Joules(1), error=Joules(0), sources=(Source.COUNTER,)))
    text, _ = exporter.render()
    agent = CollectorRegistry()
    agent.register(AgentCollector(lambda: [CollectorHealth("amdsmi", True, 2)], ChunkCounts(5, 1)))
    agent.register(StoreCollector(lambda: WriterStats(0, 0, 1, 1, 2, 3, 4, None)))
    known = {metric.family: metric for metric in CATALOG}
    seen = set()
    for family in parse_text(text.decode() + generate_latest(agent).decode() + control_page() + router_page()):
        metric = known[family.name]
        seen.add(family.name)
        assert family.type == metric.kind
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    assert seen == set(known)


def control_page() -> str:
    """A lease under a governor that has decided once."""
    power = PowerConfig(cap=Watts(300.0), sm_clock=Hertz(1.2e9))
    slo, actuator = Slo.parse("ttft:p90<500ms"), Actuator("sm_clock", 1e9, 2e9, 15e6)
    window = LatencyWindow((slo,), Seconds(10.0))
    window.arrived("a", Seconds(0.0))
    window.first_token("a", Seconds(0.1))
    with LeasedPower(("GPU-fake",), FakeChannel).held(power) as lease:
        governor = Governor(Rules(1e9, 2e9, settle=Seconds(10.0)))
        loop = GovernorLoop(governor, window, lease, actuator, FakeClock())
        loop.turn()
        registry = CollectorRegistry()
        registry.register(ControlCollector(lease, loop))
        return generate_latest(registry).decode()


def router_page() -> str:
    """A router to which everything has happened once."""
    router, name = Router(RouterConfig(backends=(BackendConfig(url="http://one:1"),))), "one:1"
    counts = router.counts
    counts.requests[name, "200"] = 1
    for counter in (counts.retries, counts.refused, counts.prompt_tokens, counts.hit_tokens, counts.event_gaps):
        counter[name] = 1
    for distribution in (counts.delay, counts.queued, counts.first_byte(name)):
        distribution.add(0.5)
    page, _ = RouterPage(RouterCollector(router.fleet, counts)).render("")
    return page.decode()


def test_two_exporters_do_not_collide(clock: FakeClock) -> None:
    first, second = (Exporter(Meter((), clock), name, Stats) for name in ("a", "b"))
    assert at("energyopt_requests_running", model="a") in page(first)
    assert at("energyopt_requests_running", model="a") not in page(second)


class TestCatalogue:
    def test_names_are_unique_and_in_base_units(self) -> None:
        assert len({metric.name for metric in CATALOG}) == len(CATALOG)
        for metric in CATALOG:
            assert re.fullmatch(r"[a-z_]+(:[a-z0-9_]+)?", metric.name)
            assert (metric.kind == "counter") == metric.name.endswith("_total")
            assert not re.search(r"_(milli|micro|ms|mj|mw|uj|kwh)(_|$)", metric.name)
            assert metric.name.startswith((PREFIX, "vllm:"))
            assert metric.help.endswith(".")

    def test_histograms_have_growing_buckets(self) -> None:
        for metric in CATALOG:
            assert bool(metric.buckets) == (metric.kind == "histogram")
            assert list(metric.buckets) == sorted(set(metric.buckets))
