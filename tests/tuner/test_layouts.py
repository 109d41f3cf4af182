"""Layout rules against the engines' own, and the accounting of what each rule removed."""

from __future__ import annotations

import pytest

from energyopt.core.config import ParallelLayout
from tuner.layouts import RULES, enumerate_layouts
from tuner.simulator.models import load_model_spec

LLAMA, QWEN, DEEPSEEK = (load_model_spec(name) for name in ("llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v3"))


@pytest.mark.parametrize(
    ("model", "layout", "broken"),
    [
        (LLAMA, ParallelLayout(tp=8), None),
        (LLAMA, ParallelLayout(tp=16, dcp=2), None),
        (LLAMA, ParallelLayout(tp=8, dcp=2), "dcp only undoes copies of the cache"),
        (LLAMA, ParallelLayout(tp=2, ep=2), "experts divide over ep = tp x dp"),
        (LLAMA, ParallelLayout(dp=2), "attention replicas (dp) only where experts are spread"),
        (LLAMA, ParallelLayout(tp=3), "attention heads divide over tp"),
        (QWEN, ParallelLayout(tp=8, ep=8), None),
        (QWEN, ParallelLayout(tp=8, ep=8, dcp=2), None),
        (QWEN, ParallelLayout(tp=2, dp=4, ep=8), None),
        (QWEN, ParallelLayout(tp=2, dp=4, ep=4), "experts divide over ep = tp x dp"),
        (QWEN, ParallelLayout(pp=5), "layers divide over pp"),
        (DEEPSEEK, ParallelLayout(tp=8, ep=8, dcp=8), None),
        (DEEPSEEK, ParallelLayout(pp=2), "layers divide over pp"),
    ],
)
def test_a_layout_breaks_the_rule_that_the_engines_know(
    model: object, layout: ParallelLayout, broken: str | None
) -> None:
    found = next((name for name, check in RULES.items() if not check(model, layout)), None)  # type: ignore[arg-type]
    assert found == broken


def test_every_candidate_is_kept_or_counted_under_one_rule() -> None:
    found = enumerate_layouts(LLAMA, 64, domain=8, extra={"no tp of 1": lambda layout: layout.tp > 1})
    assert found.considered == len(found.layouts) + sum(found.removed.values())
    assert found.removed["no tp of 1"] > 0
    assert all(layout.devices <= 8 and layout.tp > 1 for layout in found.layouts)
    assert len(set(found.layouts)) == len(found.layouts)
    fewer = enumerate_layouts(LLAMA, 4, domain=8)
    assert max(layout.devices for layout in fewer.layouts) == 4
