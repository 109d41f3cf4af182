"""The kind of machine that measures: trials of two kinds are never compared."""

from __future__ import annotations

import torch

from energyopt.core.config import DeviceKind
from energyopt.core.errors import ConfigError
from energyopt.core.leases import MEASURED_ON
from energyopt.core.study import StudyRecord, TrialState
from engine.models import choose_device

from .machine import describe_machine
from .results import Session

TOLD = ("cpu", "cores")
"""The facts of a study that was planned where it is measured which tell its machine from another."""


def hardware_name(device: DeviceKind) -> str:
    """The kind of machine in a line: two of the same line measure the same."""
    facts = describe_machine()
    chosen = choose_device(device)
    words = [facts["system"].rsplit(" ", 1)[-1], facts.get("cpu", "unknown CPU"), f"{facts['cores']} cores"]
    if chosen.type != "cpu":
        words += [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    return ", ".join(words)[:300]


def check_same_kind(session: Session, study: StudyRecord) -> None:
    """Raises ConfigError if trials of the study were measured on another kind of machine than this one.

    Where workers measured, the study names theirs; else the facts of where it was planned count, if they are known.
    """
    if not any(trial.state is TrialState.DONE and trial.attempts for trial in session.store.trials(study.id)):
        return
    if (there := study.machine.get(MEASURED_ON)) is not None:
        here = hardware_name(study.spec.baseline.decode.engine.device)
    else:
        facts = describe_machine()
        known = [name for name in TOLD if name in study.machine and name in facts]
        there, here = (", ".join(f"{name} {of[name]}" for name in known) for of in (study.machine, facts))
    if there != here:
        raise ConfigError(
            f"Study {study.id} was measured on another kind of machine ({there}) than this one ({here}), and only "
            "trials of one kind can be compared: resume it there, or begin another study here."
        )
