"""A signal in the middle of a study: the same end for SIGINT and SIGTERM, and the handler found is put back."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import typer

from energyopt.cli import run
from energyopt.compose.results import open_session
from tuner.fake_study import toy_spec


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_study_as_an_interrupt(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def signalled(*_: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(30)

    session = open_session(str(tmp_path / "x.db"), None)
    study = session.store.create_study(toy_spec(trials=1, pairs=0), {}).id
    monkeypatch.setattr(run, "run_study", signalled)
    found = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    }
    try:
        with pytest.raises(typer.Exit) as stop:
            run.run_and_print(session, study, as_json=False)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        for kind, handler in found.items():
            signal.signal(kind, handler)
    assert stop.value.exit_code == 130
    assert f"energyopt studies resume {study}" in capsys.readouterr().err
