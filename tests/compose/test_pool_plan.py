"""What each engine of the pools is told, where it has a layout of its own."""

from __future__ import annotations

import pytest
import torch

from api.pools.workers import Role
from energyopt.compose.pool_plan import plan_workers
from energyopt.compose.pools import PoolsRequest
from energyopt.compose.service import ServeRequest
from energyopt.core.config import EngineConfig, ParallelLayout
from energyopt.core.errors import ConfigError

SERVE = ServeRequest(engine=EngineConfig(model="m", device="cpu", threads=8), api_key=None)
ONE, TWO, STAGES = ParallelLayout(), ParallelLayout(tp=2), ParallelLayout(tp=2, pp=2)


def test_engines_share_the_cores_of_a_host_and_mean_the_same_by_a_block() -> None:
    plan = plan_workers(SERVE, [TWO, ONE])
    engines = [one.request.engine for one in plan.engines]
    assert [engine.layout for engine in engines] == [TWO, ONE]
    assert [engine.threads for engine in engines] == [4, 4]
    assert {engine.kernels for engine in engines} == {"torch"}, "native kernels have blocks of their own"
    assert {one.request.meter for one in plan.engines} == {"none"}
    assert all(engine.kv_transfer is not None for engine in engines)
    assert "share one device" in plan.note
    alike = plan_workers(SERVE, [ONE, ONE])
    assert {one.request.engine.kernels for one in alike.engines} == {"auto"}


def test_each_engine_has_gpus_of_its_own_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 7)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    serve = SERVE.model_copy(update={"engine": SERVE.engine.model_copy(update={"device": "cuda"})})
    plan = plan_workers(serve, [STAGES, TWO, ONE])
    assert [one.environment["CUDA_VISIBLE_DEVICES"] for one in plan.engines] == ["0,1,2,3", "4,5", "6"]
    assert not plan.note
    assert plan_workers(serve, [STAGES, STAGES]).note
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9,8,7")
    named = plan_workers(serve, [TWO, ONE])
    assert [one.environment["CUDA_VISIBLE_DEVICES"] for one in named.engines] == ["9,8", "7"]


@pytest.mark.parametrize("layout", [ParallelLayout(tp=2, dcp=2), ParallelLayout(dp=2, ep=2)])
def test_what_is_not_handed_over_is_refused_before_anything_starts(layout: ParallelLayout) -> None:
    with pytest.raises(ConfigError, match=r"not allowed in pools.*allowed are tp, pp and ep"):
        plan_workers(SERVE, [ONE, layout])


def test_a_pool_without_a_layout_has_that_of_the_service() -> None:
    serve = SERVE.model_copy(update={"engine": SERVE.engine.model_copy(update={"layout": TWO})})
    request = PoolsRequest(serve=serve, prefill_layout=STAGES)
    assert [request.layout_of(role) for role in (Role.PREFILL, Role.DECODE)] == [STAGES, TWO]
