"""A study goes on only where its trials can be compared with those before."""

from __future__ import annotations

from pathlib import Path

import pytest

from energyopt.compose.machine import describe_machine
from energyopt.compose.machine_kind import check_same_kind, hardware_name
from energyopt.compose.results import Session, open_session
from energyopt.compose.study import run_study
from energyopt.core.errors import ConfigError
from energyopt.core.leases import MEASURED_ON
from energyopt.core.study import Origin, TrialOutcome
from energyopt.core.units import Seconds
from tuner.fake_study import toy_deployment, toy_spec


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return open_session(f"sqlite:///{tmp_path / 'db'}", tmp_path / "out")


def measured(session: Session, machine: dict[str, str]) -> str:
    """A study with one trial that was measured."""
    study = session.store.create_study(toy_spec(), {"meter": "none", **machine}).id
    session.store.add_trial(study, {}, toy_deployment(), Origin.BASELINE)
    session.store.claim(study, "somebody", Seconds(60.0))
    session.store.start_attempt(study, 0, "somebody")
    session.store.finish_trial(study, 0, TrialOutcome.CRASHED, error="it died")
    session.store.release(study, "somebody")
    return study


@pytest.mark.parametrize("machine", [{"cpu": "Elbrus-8S", "cores": "8"}, {MEASURED_ON: "x86_64, Elbrus-8S, 8 cores"}])
def test_a_study_of_another_kind_of_machine_is_not_gone_on_with(session: Session, machine: dict[str, str]) -> None:
    study = measured(session, machine)
    with pytest.raises(ConfigError, match=rf"Study {study} was measured on another kind of machine \(.*Elbrus-8S"):
        run_study(session, study, lambda progress: None)


@pytest.mark.parametrize("machine", [describe_machine(), {MEASURED_ON: hardware_name("auto")}, {}])
def test_one_of_the_same_kind_is_gone_on_with(session: Session, machine: dict[str, str]) -> None:
    study = measured(session, machine)
    check_same_kind(session, session.store.study(study))


def test_what_was_only_planned_may_be_measured_anywhere(session: Session) -> None:
    study = session.store.create_study(toy_spec(), {"cpu": "Elbrus-8S", "meter": "none"})
    check_same_kind(session, study)
