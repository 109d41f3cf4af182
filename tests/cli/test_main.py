"""The command line without an engine: help, usage errors, exit codes, one sentence for every error."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from energyopt import __version__
from energyopt.cli.doctor import doctor_table
from energyopt.cli.main import main
from energyopt.cli.verbs import VERBS
from energyopt.compose.doctor import Check

LIGHT = """
import sys
from energyopt.cli.main import build_app
try:
    build_app(["--help"])(["--help"])
finally:
    sys.stderr.write("torch" if "torch" in sys.modules else "light")
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class Cli:
    """Runs a command line in this process, so that torch is imported once for all tests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)

    def __call__(self, *arguments: str) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["energyopt", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = self._capsys.readouterr()
        assert isinstance(code, int)
        return Done(code, captured.out, captured.err)


@pytest.fixture
def energyopt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    return Cli(monkeypatch, capsys, tmp_path)


def test_help_lists_every_verb_without_importing_torch() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", LIGHT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == "light"
    assert all(verb.words[0] in done.stdout for verb in VERBS)


def test_version(energyopt: Cli) -> None:
    assert energyopt("--version").out == f"energyopt {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("fly",), 2, "No such command"),
        (("studies", "list", "--colour"), 2, "No such option"),
        (("studies", "show", "nowhere"), 2, "nowhere"),
        (("studies", "list", "--db", "/proc/nothing/here.db"), 1, "/proc/nothing"),
        (("studies", "list", "--db", "mysql://somewhere"), 2, "mysql://"),
        (("studies", "list", "--db", ""), 2, "names no database file"),
        (("serve", "smollm2-135m", "--threads", "100000"), 2, "threads = 100000"),
        (("tune", "smollm2-135m", "--slo", "tfft:p90<1s"), 2, "ttft"),
        (("tune", "smollm2-135m", "--slo", "ttft:p42<1s"), 2, "p90"),
        (("tune", "smollm2-135m", "--window", "soon"), 2, "a duration"),
        (("tune", "no-such-model"), 1, "smollm2-135m"),
        (("tune", "smollm2-135m", "--meter", "guess"), 2, "estimated"),
        (("serve", "no-such-model", "--port", "0"), 1, "smollm2-135m"),
        (("serve", "smollm2-135m", "--max-num-seqs", "0"), 2, "max-num-seqs"),
        (("serve", "smollm2-135m", "--max-num-seqs", "64", "--max-num-batched-tokens", "8"), 2, "below max_num_seqs"),
        (("serve", "smollm2-135m", "--power-cap", "much"), 2, "a power"),
        (("serve", "smollm2-135m", "--device", "cuda", "--port", "0"), 2, "no GPU"),
    ],
)
def test_bad_input_is_one_sentence_and_an_exit_code(
    energyopt: Cli, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = energyopt(*arguments)
    assert done.code == code, done.err
    assert said in done.err.replace("\n", " ")
    assert "Traceback" not in done.err
    assert done.out == ""


def test_debug_shows_the_traceback(energyopt: Cli) -> None:
    done = energyopt("--debug", "studies", "show", "nowhere")
    assert "Traceback" in done.err
    assert done.code == 2


def test_an_empty_database_lists_no_study_as_json(energyopt: Cli, tmp_path: Path) -> None:
    assert json.loads(energyopt("studies", "list", "--json").out) == []
    assert (tmp_path / ".local/share/energyopt/energyopt.db").exists()


def test_a_fault_of_ours_is_one_sentence_too(energyopt: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("one over none")

    monkeypatch.setattr("energyopt.cli.studies.open_session", broken)
    done = energyopt("studies", "list")
    assert done.code == 1
    assert "internal error: ZeroDivisionError: one over none" in done.err
    assert "Traceback" not in done.err


def test_a_long_error_stays_on_one_line(energyopt: Cli, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    done = energyopt("tune", str(long))
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert str(long) in done.err


def test_words_in_brackets_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    """A table must not take ``energyopt[gpu]`` for a colour."""
    check = Check("kernels", "limited", "needs energyopt[gpu]", "pip install energyopt[gpu]")
    Console(width=100).print(doctor_table([check]))
    assert capsys.readouterr().out.count("energyopt[gpu]") == 2
