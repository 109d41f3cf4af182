"""A study's winner as a file for another system, checked against the memory of the devices it is meant for."""

from __future__ import annotations

from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError, NotFoundError
from tuner.evaluators.choice import evaluator_choice
from tuner.export.forms import render
from tuner.simulator.hardware import load_gpu
from tuner.simulator.memory import kv_tokens
from tuner.simulator.models import load_model_spec

from .results import Session

UNCHECKED = "Memory is not checked: name the GPU that this is for with --hardware."
OURS = ("energyopt", "systemd")
"""Forms of our own engine, which has run this configuration on the machine of the study."""


def export_winner(session: Session, study_id: str, form: str, hardware: str | None = None) -> str:
    """The recommended configuration in ``form``. Raises NotFoundError without one, ConfigError if it cannot be.

    Weights, workspace and one context of each pool must fit the GPU it is for: ``hardware``, or the simulated one of
    the study. Where neither is known, or the model is not, the text says that nothing was checked.
    """
    study = session.store.study(study_id)
    if study.recommendation is None:
        raise NotFoundError(f"Study {study.id} has no recommendation to export.")
    number = study.recommendation.trial
    winner = next(trial for trial in session.store.trials(study.id) if trial.number == number)
    target = hardware or evaluator_choice(study.machine).hardware
    text, media_type = render(form, winner.deployment)
    note = unchecked(winner.deployment, target, strict=hardware is not None)
    if note is None or form in OURS or media_type == "application/json":
        return text
    return f"# {note}\n{text}"


def unchecked(deployment: Deployment, hardware: str | None, *, strict: bool = False) -> str | None:
    """Why memory was not checked; None if it was, and fits. Raises ConfigError if it does not.

    ``strict`` raises as well, instead of telling, where the model or the hardware is not described.
    """
    if hardware is None:
        return UNCHECKED
    try:
        load_gpu(hardware)
        load_model_spec(deployment.decode.engine.model)
    except (ConfigError, NotFoundError) as error:
        if strict:
            raise
        return f"Memory is not checked: {error}"
    check_memory(deployment, hardware)
    return None


def check_memory(deployment: Deployment, hardware: str) -> None:
    """Raises ConfigError for a pool whose engine does not fit on ``hardware``, or not with one whole context.

    A manifest that asks for a longer context than the cache holds starts, fails and starts again for ever.
    """
    gpu = load_gpu(hardware)
    for name, pool in (("decode", deployment.decode), ("prefill", deployment.prefill)):
        if pool is None:
            continue
        engine = pool.engine
        room = kv_tokens(load_model_spec(engine.model), gpu, engine.layout)
        if room <= 0:
            raise ConfigError(f"The {name} pool does not fit: {engine.model} leaves no cache on {gpu.name}.")
        if engine.max_model_len is not None and engine.max_model_len > room:
            raise ConfigError(
                f"max_model_len {engine.max_model_len} of the {name} pool does not fit: the cache on {gpu.name} "
                f"holds {room:.0f} tokens."
            )
