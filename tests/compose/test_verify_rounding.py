"""When `verify` measures what rounding the weights costs, and what it says."""

from __future__ import annotations

import pytest

from energyopt.compose import verify
from energyopt.compose.verify import rounding_check
from energyopt.core.config import EngineConfig
from engine.divergence import Divergence


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("http://localhost:1", ()),
        ("answers.json", ()),
        ("/models/floats", ()),
        ("smollm2-135m", ("--quantization=none",)),
        ("smollm2-135m", ("--quantization=int4", "--quantization=none")),
    ],
)
def test_nothing_is_measured_where_nothing_is_rounded(target: str, options: tuple[str, ...]) -> None:
    assert rounding_check(target, options) is None


@pytest.mark.parametrize(("nats", "passed"), [(0.03, True), (0.2, False)])
def test_the_divergence_is_a_check(monkeypatch: pytest.MonkeyPatch, nats: float, passed: bool) -> None:
    seen: list[EngineConfig] = []

    def measured(config: EngineConfig, text: str, tokens: int) -> Divergence:
        seen.append(config)
        return Divergence(nats, (2.0, 2.25), tokens, "int4")

    monkeypatch.setattr(verify, "divergence", measured)
    check = rounding_check("/models/floats", ("--quantization=int4", "--meter=none"))
    assert check is not None
    assert (check.passed, check.score) == (passed, nats)
    assert "int4" in check.detail
    assert "loss 2.250, in float32 2.000" in check.detail
    assert seen[0].quantization == "int4"
