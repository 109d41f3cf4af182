"""A study as a person writes it down: one file of YAML, TOML or JSON, checked against one schema.

Knows the form and turns it into knobs, budget and plan; reads no file and asks no machine. A knob may be named by the
end of its path as long as that is the end of one path only: ``max_num_seqs`` for ``decode.engine.max_num_seqs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from energyopt.core.config import Config, EngineConfig, PoolConfig
from energyopt.core.errors import ConfigError
from energyopt.core.footprint import FootprintConfig
from energyopt.core.slo import Slo
from energyopt.core.study import Budget, Knob, MeasurePlan, Sampler, Space, Value
from energyopt.core.units import Joules, Seconds, parse_seconds

from .evaluators.choice import EvaluatorChoice
from .paths import knob_paths

Form = str | float | int


def _seconds(value: Any) -> Any:
    """``30min`` or a number of seconds."""
    return parse_seconds(value) if isinstance(value, str) else value


Duration = Annotated[Seconds, BeforeValidator(_seconds, json_schema_input_type=str | float)]


class KnobForm(Config):
    """A knob in full; a plain list of values is enough where nothing else is to be said."""

    values: tuple[Value, ...] = Field(min_length=1)
    ordinal: bool | None = Field(None, description="Whether the order means something; default: for numbers it does.")
    when: Mapping[str, tuple[Value, ...]] = Field(
        default_factory=dict, description="Other knobs and the values of theirs with which this one has an effect."
    )


class BudgetForm(Config):
    """When the search stops, and how many winner/baseline pairs are measured after it."""

    trials: int = Field(24, ge=1)
    time: Duration | None = Field(None, gt=0, description="Such as 30min; the verification included.")
    joules: Joules | None = Field(None, gt=0)
    verify_pairs: int = Field(3, ge=0)


class MeasureForm(Config):
    """How each run is measured."""

    warmup: Duration = Field(Seconds(5.0), ge=0)
    window: Duration = Field(Seconds(30.0), gt=0)
    timeout: Duration = Field(Seconds(300.0), gt=0)
    settle: Duration = Field(Seconds(10.0), ge=0, description="Wait up to so long for an idle, cool machine.")


class LoadForm(Config):
    """The chat sessions that are the load."""

    concurrency: int = Field(8, ge=1)
    seed: int = 0


class StudyFile(Config):
    """The whole file."""

    version: Literal[1] = 1
    name: str | None = Field(None, max_length=200)
    model: str
    evaluator: EvaluatorChoice = EvaluatorChoice()
    baseline: Mapping[str, Any] = Field(
        default_factory=dict, description="Fields of a pool (engine, power, replicas) that differ from the defaults."
    )
    prefill: Mapping[str, Any] | None = Field(None, description="The same for a prefill pool; none without it.")
    knobs: Mapping[str, tuple[Value, ...] | KnobForm] = Field(
        default_factory=dict, description="What to search, by path or by its end; none: the usual knobs of this host."
    )
    slos: tuple[str, ...] = Field(min_length=1)
    workload: LoadForm = LoadForm()
    budget: BudgetForm = BudgetForm()
    measure: MeasureForm = MeasureForm()
    sampler: Sampler = "auto"
    maximize: Literal["tokens_per_joule", "output_rate"] | None = Field(
        None, description="Default: tokens per joule where something measures them."
    )
    meter: str = "auto"
    footprint: FootprintConfig = FootprintConfig()

    def pool(self, given: Mapping[str, Any]) -> PoolConfig:
        """A pool of the file's model. Raises pydantic's ValidationError."""
        engine = {"model": self.model, **dict(given.get("engine", {}))}
        return PoolConfig.model_validate({**given, "engine": engine})

    def space(self) -> Space | None:
        """The knobs that are named, None if none is. Raises ConfigError for a name that fits none or several."""
        if not self.knobs:
            return None
        return Space(knobs=tuple(_knob(name, form) for name, form in self.knobs.items()))

    def slo_texts(self) -> tuple[str, ...]:
        """Raises SloError."""
        return tuple(str(Slo.parse(text)) for text in self.slos)

    def budgeted(self) -> Budget:
        own = self.budget
        return Budget(trials=own.trials, seconds=own.time, joules=own.joules, verify_pairs=own.verify_pairs)

    def plan(self) -> MeasurePlan:
        own = self.measure
        return MeasurePlan(warmup=own.warmup, window=own.window, timeout=own.timeout, settle=own.settle)


def study_schema() -> dict[str, Any]:
    """The JSON schema of the file, for editors and for checks elsewhere."""
    schema = StudyFile.model_json_schema(mode="validation")
    paths = ", ".join(path for path in knob_paths() if path.startswith("decode."))
    schema["properties"]["knobs"]["description"] += f" Paths: {paths}; and the same with prefill."
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def full_path(name: str) -> str:
    """The path that ``name`` is, or is the end of. Raises ConfigError."""
    known = knob_paths()
    if name in known:
        return name
    fitting = [path for path in known if path.startswith("decode.") and path.endswith(f".{name}")]
    if len(fitting) == 1:
        return fitting[0]
    several = f" It could be {', '.join(fitting)}." if fitting else ""
    ends = ", ".join(sorted(path.removeprefix("decode.") for path in known if path.startswith("decode.")))
    raise ConfigError(f"{name!r} is no knob.{several} Allowed are the paths, or unique ends, of: {ends}.")


def _knob(name: str, form: tuple[Value, ...] | KnobForm) -> Knob:
    full = form if isinstance(form, KnobForm) else KnobForm(values=form)
    numbers = all(value is None or (isinstance(value, int | float) and value is not True) for value in full.values)
    ordinal = numbers and False not in full.values if full.ordinal is None else full.ordinal
    when = {full_path(other): values for other, values in full.when.items()}
    return Knob(path=full_path(name), values=full.values, ordinal=ordinal, when=when)


def engine_of(file: StudyFile) -> EngineConfig:
    """The baseline's engine."""
    return file.pool(file.baseline).engine
