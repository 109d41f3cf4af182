"""A small study of the toy machine in ``fake``: the spec, and a power controller that only writes down what it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from energyopt.core.config import Deployment, EngineConfig, PoolConfig, PowerConfig
from energyopt.core.study import Budget, Knob, MeasurePlan, Space, StudySpec
from energyopt.core.units import Seconds
from energyopt.core.workload import Session, Turn, Workload

TOY_SLOS = ("ttft:p90<1500ms", "itl:p99<80ms")
"""About a quarter of the toy space keeps them."""


def toy_deployment() -> Deployment:
    """The engine's defaults on the toy model."""
    return Deployment(decode=PoolConfig(engine=EngineConfig(model="toy")))


def toy_space(*, small: bool = False) -> Space:
    """7,200 points, or 18 (14 of them valid) for tests that run through all of them."""
    if small:
        return Space(
            knobs=(
                Knob(path="decode.engine.max_num_seqs", values=(32, 64, 128)),
                Knob(path="decode.engine.max_num_batched_tokens", values=(32, 512, 2048)),
                Knob(path="decode.power.sm_clock", values=(1.2e9, None)),
            )
        )
    return Space(
        knobs=(
            Knob(path="decode.power.sm_clock", values=(0.6e9, 0.9e9, 1.2e9, 1.5e9, 1.8e9, None)),
            Knob(path="decode.engine.max_num_seqs", values=(4, 8, 16, 32, 64)),
            Knob(path="decode.engine.threads", values=(1, 2, 4, 6, None)),
            Knob(path="decode.engine.max_num_batched_tokens", values=(128, 256, 512, 1024, 2048, 4096)),
            Knob(path="decode.engine.kv.prefix_caching", values=(False, True), ordinal=False),
            Knob(path="decode.engine.kv.block_tokens", values=(8, 16, 32, 64)),
        )
    )


def toy_workload(seed: int = 0, *, concurrency: int = 48) -> Workload:
    """The toy machine reads no text, so there is hardly any."""
    turn = Turn(text=f"turn of {seed}", output_tokens=1)
    return Workload(name="toy", seed=seed, sessions=(Session(id="toy", turns=(turn,)),), concurrency=concurrency)


def toy_spec(*, trials: int = 10, pairs: int = 3, **changes: Any) -> StudySpec:
    """A study of the small space; ``changes`` are fields of StudySpec."""
    fields: Mapping[str, Any] = {
        "name": "toy",
        "baseline": toy_deployment(),
        "space": toy_space(small=True),
        "workload": toy_workload(0),
        "verify_workload": toy_workload(1),
        "slos": TOY_SLOS,
        "budget": Budget(trials=trials, verify_pairs=pairs),
        "plan": MeasurePlan(warmup=Seconds(1.0), window=Seconds(5.0), timeout=Seconds(60.0)),
        "sampler": "random",
    }
    return StudySpec.model_validate({**fields, **changes})


class FakePowerController:
    """Writes down what was applied; ``now`` is what is in force, PowerConfig() outside a block."""

    def __init__(self) -> None:
        self.now = PowerConfig()
        self.history: list[PowerConfig] = []

    @contextmanager
    def applied(self, power: PowerConfig) -> Iterator[None]:
        found, self.now = self.now, power
        self.history.append(power)
        try:
            yield
        finally:
            self.now = found
