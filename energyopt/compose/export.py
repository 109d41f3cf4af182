"""A study's winner as a file for another system, checked against the memory of the devices it is meant for."""

from __future__ import annotations

from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError, NotFoundError
from tuner.export.forms import render
from tuner.simulator.hardware import load_gpu
from tuner.simulator.memory import kv_tokens
from tuner.simulator.models import load_model_spec

from .results import Session


def export_winner(session: Session, study_id: str, form: str, hardware: str | None = None) -> str:
    """The recommended configuration in ``form``. Raises NotFoundError without one, ConfigError if it cannot be.

    ``hardware`` names the GPU it is for: then weights, workspace and one context of each pool must fit.
    """
    study = session.store.study(study_id)
    if study.recommendation is None:
        raise NotFoundError(f"Study {study.id} has no recommendation to export.")
    number = study.recommendation.trial
    winner = next(trial for trial in session.store.trials(study.id) if trial.number == number)
    if hardware is not None:
        check_memory(winner.deployment, hardware)
    return render(form, winner.deployment)[0]


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
