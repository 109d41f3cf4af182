"""An exported winner fits the memory it is meant for, or is not exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from energyopt.compose.export import UNCHECKED, check_memory, export_winner
from energyopt.compose.results import open_session
from energyopt.core.config import Deployment, EngineConfig, ParallelLayout, PoolConfig
from energyopt.core.errors import ConfigError
from energyopt.core.study import Origin, Recommendation
from tuner.evaluators.choice import EVALUATOR_KEY, EvaluatorChoice
from tuner.fake_study import toy_spec


def deployment(model: str, *, tp: int = 1, context: int | None = None) -> Deployment:
    engine = EngineConfig(model=model, layout=ParallelLayout(tp=tp), max_model_len=context)
    return Deployment(decode=PoolConfig(engine=engine))


def test_what_fits_passes() -> None:
    check_memory(deployment("qwen3-8b", context=32_768), "h100")
    check_memory(deployment("llama-3.1-70b", tp=4), "h100")


def test_weights_that_do_not_fit_and_contexts_that_the_cache_cannot_hold_are_refused() -> None:
    with pytest.raises(ConfigError, match="decode pool does not fit"):
        check_memory(deployment("llama-3.1-70b"), "h100")
    with pytest.raises(ConfigError, match="max_model_len 10000000"):
        check_memory(deployment("qwen3-8b", context=10_000_000), "h100")


def test_what_is_not_checked_is_said_and_what_was_simulated_is_checked(tmp_path: Path) -> None:
    session = open_session(f"sqlite:///{tmp_path / 'db'}", tmp_path / "out")

    def exported(model: str, form: str, choice: EvaluatorChoice, hardware: str | None = None) -> str:
        baseline = deployment(model)
        study = session.store.create_study(
            toy_spec(baseline=baseline), {EVALUATOR_KEY: choice.model_dump_json(exclude_defaults=True)}
        )
        session.store.add_trial(study.id, {}, baseline, Origin.BASELINE)
        session.store.recommend(study.id, Recommendation(trial=0, verified=False, pairs=0))
        return export_winner(session, study.id, form, hardware)

    plain, simulated = EvaluatorChoice(), EvaluatorChoice(kind="simulator", hardware="h100")
    assert exported("qwen3-8b", "kubernetes", plain).startswith(f"# {UNCHECKED}")
    assert UNCHECKED not in exported("qwen3-8b", "energyopt", plain)
    assert "Memory is not" not in exported("qwen3-8b", "kubernetes", simulated)
    assert "Memory is not" not in exported("qwen3-8b", "kubernetes", plain, "h100")
    with pytest.raises(ConfigError, match="does not fit"):
        exported("llama-3.1-70b", "kubernetes", simulated)
    assert "Memory is not checked: " in exported("org/unknown", "vllm", simulated)
