"""Time and power of a step: signs, limits and conservation, whatever the constants are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.config import ParallelLayout, PowerConfig
from energyopt.core.errors import ConfigError
from energyopt.core.units import Hertz, Watts
from tuner.simulator.constants import load_constants
from tuner.simulator.hardware import load_gpu
from tuner.simulator.machine import Machine, voltage
from tuner.simulator.memory import kv_tokens
from tuner.simulator.models import load_model_spec
from tuner.simulator.work import StepShape, WorkModel

H100 = load_gpu("h100")
DENSE, MOE = load_model_spec("llama-3.1-8b"), load_model_spec("qwen3-30b-a3b")


def machine(tp: int = 1, *, moe: bool = False, cap: float | None = None, clock: float | None = None) -> Machine:
    power = PowerConfig(cap=None if cap is None else Watts(cap), sm_clock=None if clock is None else Hertz(clock))
    layout = ParallelLayout(tp=tp, ep=tp if moe else 1)
    return Machine(MOE if moe else DENSE, H100, layout, load_constants(H100, moe=moe), power)


def decode(batch: float, context: float = 600.0) -> StepShape:
    return StepShape(batch, batch * context, sampled=batch)


def prefill(tokens: float) -> StepShape:
    return StepShape(0, 0, 1, tokens, tokens**2 / 2, 0, 1)


@settings(max_examples=60, deadline=None)
@given(batch=st.floats(1, 900), more=st.floats(1.01, 3), tp=st.sampled_from([1, 2, 4]), moe=st.booleans())
def test_more_work_takes_longer_and_less_energy_a_token(batch: float, more: float, tp: int, moe: bool) -> None:
    one = machine(tp, moe=moe)
    small, large = one.cost(decode(batch)), one.cost(decode(batch * more))
    assert large.seconds > small.seconds
    per_token = small.seconds * small.watts / batch, large.seconds * large.watts / (batch * more)
    assert per_token[1] < per_token[0] * 1.001


@settings(max_examples=60, deadline=None)
@given(cap=st.floats(200, 700), tokens=st.integers(1, 8192), batch=st.integers(1, 512))
def test_a_cap_is_kept_and_never_speeds_up(cap: float, tokens: int, batch: int) -> None:
    for shape in (prefill(tokens), decode(batch)):
        free, capped = machine().cost(shape), machine(cap=cap).cost(shape)
        assert capped.seconds >= free.seconds * (1 - 1e-9)
        assert capped.watts <= max(cap, 0) * 1.001 or capped.clock <= 0.18
        assert capped.watts <= free.watts * (1 + 1e-9)


def test_a_cap_binds_only_where_the_draw_would_exceed_it_and_a_lock_always_acts() -> None:
    light = decode(1, 16)
    free, capped, locked = (m.cost(light) for m in (machine(), machine(cap=650), machine(clock=1.4e9)))
    assert capped.seconds == pytest.approx(free.seconds, rel=0.02)
    assert locked.clock == pytest.approx(1.4e9 / H100.value("clock_max"))
    assert locked.watts < free.watts
    heavy = machine(cap=350).cost(prefill(8192))
    assert heavy.watts <= 350
    assert heavy.clock < 0.9


def test_prefill_feels_the_clock_more_than_decode() -> None:
    def slowdown(shape: StepShape) -> float:
        return machine(clock=1.2e9).cost(shape).seconds / machine().cost(shape).seconds

    assert slowdown(prefill(8192)) > slowdown(decode(8)) > 1


@pytest.mark.parametrize(("name", "value"), [("cap", 100.0), ("cap", 800.0), ("clock", 3e9), ("clock", 1e8)])
def test_a_limit_outside_the_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match="takes"):
        machine(**{name: value})  # type: ignore[arg-type]  # one of two float arguments


def test_voltage_is_flat_to_the_knee_and_then_rises_to_one() -> None:
    assert voltage(0.3, 0.7, 0.7) == voltage(0.7, 0.7, 0.7) == 0.7
    assert voltage(1.0, 0.7, 0.7) == pytest.approx(1.0)


def test_weights_are_read_once_and_divide_over_the_ranks() -> None:
    shape = decode(1, 0)
    whole, half = (WorkModel(DENSE, ParallelLayout(tp=tp), fp8=True).of(shape) for tp in (1, 2))
    assert whole.linear_bytes == pytest.approx(DENSE.weight_bytes() - DENSE.head_params * 2, rel=0.001)
    assert half.linear_bytes == pytest.approx(whole.linear_bytes / 2, rel=0.001)
    assert whole.link_bytes == 0 < half.link_bytes


def test_experts_touched_grow_from_top_k_to_all() -> None:
    model = WorkModel(MOE, ParallelLayout(), fp8=True)
    assert model.touched(1) == pytest.approx(MOE.experts_per_token)
    assert model.touched(10_000) == pytest.approx(MOE.experts)


def test_flops_are_two_per_active_weight_and_token() -> None:
    work = WorkModel(MOE, ParallelLayout(), fp8=False).of(StepShape(64, 0, sampled=64))
    embeddings = MOE.head_params
    computed = work.linear_wide + work.expert_wide
    assert computed == pytest.approx(2 * 64 * (MOE.active_params - embeddings), rel=0.001)


def test_eight_bit_experts_pay_for_the_rows_that_align_them() -> None:
    small, large = (MOE.model_copy(update={"precision": "fp8"}) for _ in range(2))
    one = WorkModel(small, ParallelLayout(), fp8=True).of(decode(1))
    many = WorkModel(large, ParallelLayout(), fp8=True).of(decode(1001))
    per_token = 2 * MOE.moe_layers * MOE.experts_per_token * MOE.expert_params
    assert many.expert_narrow - one.expert_narrow == pytest.approx(1000 * per_token)
    padding = 2 * 127 * MOE.moe_layers * MOE.experts * MOE.expert_params
    assert one.expert_narrow == pytest.approx(padding + per_token)
    half = WorkModel(small, ParallelLayout(tp=2, ep=2), fp8=True).of(decode(1))
    assert half.expert_narrow == pytest.approx(one.expert_narrow / 2)


def test_routed_rows_pass_every_rank_and_sampling_sees_the_vocabulary() -> None:
    whole, split = (WorkModel(MOE, ParallelLayout(tp=n, ep=n), fp8=True).of(decode(8)) for n in (1, 4))
    assert whole.routed_bytes == split.routed_bytes > 0
    assert whole.logits == 8 * MOE.vocab


def test_latent_caches_are_copied_and_grouped_ones_split_until_the_heads_run_out() -> None:
    deep, gpu = load_model_spec("deepseek-v3"), load_gpu("b200")
    one, split = (kv_tokens(deep, gpu, ParallelLayout(tp=8, dcp=dcp, ep=8)) for dcp in (1, 8))
    assert split == pytest.approx(8 * one)
    assert kv_tokens(load_model_spec("llama-3.1-70b"), H100, ParallelLayout()) < 0
