"""Which evaluator a study wants, as data: it is stored with the study and read again when it resumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from energyopt.core.config import Config

Kind = Literal["embedded", "endpoint", "vllm", "sglang", "simulator", "replay"]

NEEDS: dict[Kind, tuple[str, ...]] = {"endpoint": ("url",), "simulator": ("hardware",), "replay": ("study",)}
"""Fields that a kind cannot do without."""


class EvaluatorChoice(Config):
    """``kind`` and what it needs.

    ``command`` starts the external engine where its name is not on the path; ``arguments`` are handed to it as they
    are. ``energy_url`` is a metrics page with joules (an agent, DCGM's exporter) where this host's sensors do not see
    the engine's devices. ``devices`` are the ones whose joules count and whose limits are set; without them they are
    the first GPUs that a launched engine sees, and all of the host or page for an endpoint.
    """

    kind: Kind = "embedded"
    url: str | None = Field(None, description="endpoint: where a server answers, ending before /v1.")
    served_model: str | None = Field(None, description="endpoint: the name to ask for; default: its first one.")
    command: tuple[str, ...] = Field((), description="vllm, sglang: the program and its first words.")
    arguments: tuple[str, ...] = Field((), description="vllm, sglang: further words, unchanged.")
    environment: tuple[str, ...] = Field((), description="vllm, sglang: NAME=value, beside this process's own.")
    energy_url: str | None = None
    devices: tuple[str, ...] = Field(
        (), description="endpoint, vllm, sglang: what the engine computes on, as UUIDs of GPUs or cpu:0, in its order."
    )
    hardware: str | None = Field(None, description="simulator: a GPU by name or file.")
    constants: str | None = Field(None, description="simulator: calibrated constants.")
    study: str | None = Field(None, description="replay: the stored study whose results are given again.")

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> EvaluatorChoice:
        for field in NEEDS.get(self.kind, ()):
            if not getattr(self, field):
                raise ValueError(f"the evaluator {self.kind} needs {field}")
        for word in self.environment:
            if "=" not in word or word.startswith("="):
                raise ValueError(f"environment {word!r} is not NAME=value")
        return self


EVALUATOR_KEY = "evaluator"
"""Where a study keeps which evaluator it runs on, among the facts of its machine; absent is the embedded engine."""


def evaluator_choice(machine: Mapping[str, str]) -> EvaluatorChoice:
    """What a study's facts say about its evaluator."""
    return EvaluatorChoice.model_validate_json(machine.get(EVALUATOR_KEY, "{}"))
