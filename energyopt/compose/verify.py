"""Checks the answers of one configuration against another's: servers that run, models to serve, or a kept recording."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import Deployment, EngineConfig, parse_config
from energyopt.core.errors import ConfigError, EnergyoptError, StoreError
from energyopt.core.runs import RunRecord
from energyopt.store.database import default_url
from energyopt.store.runs import open_runs
from engine.divergence import divergence
from engine.models import ALIASES
from tuner.accuracy.answers import Answers, HttpPost, collect
from tuner.accuracy.checks import AccuracyReport, Check, Thresholds, judge
from tuner.accuracy.questions import PLAIN
from tuner.export.command import serve_command

from .served import serving

VERIFY = "verify"
ROUNDING_LIMIT = 0.1
"""Nats from float32 that rounded weights may cost: four bits cost about 0.03 with care and 0.36 without."""
ROUNDING_TOKENS = 96
_MAX_RECORDING = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Questions:
    """How much is asked: ``prompts`` plain questions of ``tokens`` tokens, numbers hidden in ``words`` words."""

    prompts: int = len(PLAIN)
    tokens: int = 48
    words: int = 400


def answers_of(
    target: str,
    questions: Questions,
    *,
    model: str | None = None,
    api_key: str | None = None,
    options: Sequence[str] = (),
) -> Answers:
    """The answers of a server, of a model served with ``options``, or of a recording (``*.json``).

    Raises ConfigError, LaunchError, EngineError.
    """
    if target.endswith(".json"):
        return _read(Path(target))
    with serving(target, model, api_key, options) as served, HttpPost(served.url, api_key) as post:
        return collect(post, served.model, tokens=questions.tokens, prompts=questions.prompts, words=questions.words)


def compare_answers(baseline: Answers, candidate: Answers, thresholds: Thresholds) -> AccuracyReport:
    """Raises ConfigError if the two were asked different questions (a recording made with other options)."""
    try:
        return judge(baseline, candidate, thresholds)
    except ValueError as error:
        raise ConfigError(f"The answers cannot be compared: {error}") from error


def rounding_check(target: str, options: Sequence[str], limit: float = ROUNDING_LIMIT) -> Check | None:
    """What the rounding of a model's weights costs, on this machine's CPU; None where ``target`` is no model, or its
    weights are not rounded as far as its name and ``options`` tell. Raises what ``divergence`` raises."""
    asked = [option.partition("=")[2] for option in options if option.startswith("--quantization=")]
    quantization = asked[-1] if asked else "auto"
    packed = target in ALIASES or target.endswith(".gguf")
    if "://" in target or quantization == "none" or (quantization == "auto" and not packed):
        return None
    config = parse_config(EngineConfig, {"model": target, "quantization": quantization})
    found = divergence(config, " ".join(PLAIN), ROUNDING_TOKENS)
    detail = (
        f"{found.weights}: {found.nats:.4f} nats from float32 over {found.tokens} tokens; "
        f"loss {found.losses[1]:.3f}, in float32 {found.losses[0]:.3f}"
    )
    return Check(name="rounded weights", passed=found.nats <= limit, score=found.nats, limit=limit, detail=detail)


def keep_report(report: AccuracyReport, db: str | None) -> tuple[str, str]:
    """Store a report; returns its id and the database. Raises StoreError."""
    url = db or default_url(os.environ)
    record = RunRecord(
        id=secrets.token_hex(4),
        created=MonotonicClock().utc(),
        kind=VERIFY,
        name=f"{report.candidate} against {report.baseline}",
        model=report.candidate,
        valid=report.passed,
        document=report.model_dump_json(),
    )
    with open_runs(url) as store:
        store.add_run(record)
    return record.id, url


def save_answers(answers: Answers, path: Path) -> None:
    """Keep answers as the baseline of later checks. Raises StoreError."""
    try:
        path.write_text(answers.model_dump_json(indent=1), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"The answers cannot be written to {path}: {error.strerror}.") from error


def _read(path: Path) -> Answers:
    try:
        if path.stat().st_size > _MAX_RECORDING:
            raise ConfigError(f"{path} is larger than {_MAX_RECORDING} bytes.")
        return Answers.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"The recording {path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise ConfigError(f"{path} is not a recording of answers; make one with --save.") from error


class ServedGate:
    """The tuner's accuracy gate: serves baseline and candidate one after the other and compares their answers.

    The baseline is asked once. ``refuses`` says why a candidate may not win, None if it may.
    """

    def __init__(
        self,
        baseline: Deployment,
        *,
        questions: Questions | None = None,
        thresholds: Thresholds | None = None,
        ask: Callable[[Deployment], Answers] | None = None,
    ) -> None:
        self._baseline, self._thresholds = baseline, thresholds or Thresholds()
        self._questions = questions or Questions(prompts=4, tokens=16, words=120)
        self._ask = ask or self._served
        self._known: dict[str, Answers] = {}

    def refuses(self, candidate: Deployment) -> str | None:
        """Answers that cannot be had are no good answers: then the reason says why."""
        try:
            report = judge(self._answers(self._baseline), self._answers(candidate), self._thresholds)
        except EnergyoptError as error:
            return f"the answers cannot be compared: {error}"
        return None if report.passed else (report.reason or "no check applied")

    def _answers(self, deployment: Deployment) -> Answers:
        digest = deployment.digest()
        if digest not in self._known:
            self._known[digest] = self._ask(deployment)
        return self._known[digest]

    def _served(self, deployment: Deployment) -> Answers:
        _, _, model, *options = serve_command(deployment).argv
        return answers_of(model, self._questions, options=(*options, "--meter", "none"))


def thresholds_of(given: Mapping[str, float | None]) -> Thresholds:
    """Thresholds with what was given. Raises ConfigError for an unknown name."""
    unknown = set(given) - set(Thresholds.model_fields)
    if unknown:
        raise ConfigError(f"Unknown thresholds {sorted(unknown)}: allowed are {', '.join(Thresholds.model_fields)}.")
    return Thresholds.model_validate({name: value for name, value in given.items() if value is not None})
