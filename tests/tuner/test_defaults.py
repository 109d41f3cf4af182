"""The default space holds the baseline, offers power only where it may be set, and fits a short study when asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.config import Deployment, EngineConfig, PoolConfig, PowerConfig
from energyopt.core.errors import ConfigError
from energyopt.core.study import Space, Value
from energyopt.core.units import Hertz, Watts
from tuner.defaults import PowerRange, host_space
from tuner.fake_study import toy_deployment
from tuner.space import SearchSpace

H200 = PowerRange(low=Watts(200.0), high=Watts(700.0), default=Watts(700.0))


def values(space: Space, path: str) -> tuple[Value, ...] | None:
    return next((knob.values for knob in space.knobs if knob.path == path), None)


def test_without_power_control_there_is_no_power_knob() -> None:
    paths = {knob.path for knob in host_space(toy_deployment(), cores=4).knobs}
    assert paths == {
        "decode.engine.max_num_seqs",
        "decode.engine.max_num_batched_tokens",
        "decode.engine.kv.block_tokens",
        "decode.engine.kv.prefix_caching",
        "decode.engine.threads",
    }


def test_power_knobs_lie_within_what_the_device_allows_and_lead_the_space() -> None:
    space = host_space(toy_deployment(), cores=8, power=H200, max_clock=Hertz(1.98e9))
    assert [knob.path for knob in space.knobs[:2]] == ["decode.power.cap", "decode.power.sm_clock"]
    assert values(space, "decode.power.cap") == (385.0, 490.0, 595.0, None)
    assert values(space, "decode.power.sm_clock") == (891e6, 1188e6, 1485e6, 1782e6, None)


def test_a_cap_below_the_devices_minimum_is_not_offered() -> None:
    tight = PowerRange(low=Watts(600.0), high=Watts(700.0), default=Watts(700.0))
    assert values(host_space(toy_deployment(), 8, power=tight), "decode.power.cap") is None
    with pytest.raises(ConfigError, match="low <= default <= high"):
        PowerRange(low=Watts(300.0), high=Watts(700.0), default=Watts(200.0))


def test_every_core_is_none_and_only_fewer_are_listed() -> None:
    assert values(host_space(toy_deployment(), 8), "decode.engine.threads") == (2, 4, 6, None)
    assert values(host_space(toy_deployment(), 2), "decode.engine.threads") == (1, None)
    assert values(host_space(toy_deployment(), 1), "decode.engine.threads") is None
    with pytest.raises(ConfigError, match="cores 0"):
        host_space(toy_deployment(), 0)


def test_sequences_stop_where_more_change_nothing() -> None:
    space = host_space(toy_deployment(), 4, concurrency=6)
    assert values(space, "decode.engine.max_num_seqs") == (1, 2, 4, 8, 64)


def test_the_quick_space_is_small() -> None:
    space = host_space(toy_deployment(), 2, concurrency=8, quick=True)
    assert values(space, "decode.engine.max_num_seqs") == (2, 8, 64)
    assert SearchSpace(space, toy_deployment()).plan.total <= 100


@given(
    seqs=st.integers(1, 300), tokens=st.integers(300, 5000), block=st.integers(1, 128),
    threads=st.none() | st.integers(1, 64), cap=st.none() | st.floats(100, 800),
    cores=st.integers(1, 128), quick=st.booleans(), metered=st.booleans(),
)  # fmt: skip
def test_the_baseline_is_always_a_point(
    seqs: int, tokens: int, block: int, threads: int | None, cap: float | None, cores: int, quick: bool, metered: bool
) -> None:
    engine = EngineConfig.model_validate(
        {
            "model": "m",
            "max_num_seqs": seqs,
            "max_num_batched_tokens": tokens,
            "threads": threads,
            "kv": {"block_tokens": block},
        }
    )
    power = PowerConfig.model_validate({"cap": cap})
    baseline = Deployment(decode=PoolConfig(engine=engine, power=power))
    space = SearchSpace(host_space(baseline, cores, quick=quick, power=H200 if metered else None), baseline)
    assert space.check(space.baseline_params) is None
