"""``energyopt measure`` on the command line: exit codes, streams, documents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = "import sys; from energyopt.cli.main import main; sys.exit(main())"


def energyopt(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", MAIN, "measure", *arguments]
    # Without what a verb that ran in this process may have set for its own threads.
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    root = Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=root, env=environment)


def test_the_command_speaks_on_standard_output_and_we_beside_it(tmp_path: Path) -> None:
    script = "echo out; echo $GOMP_SPINCOUNT; exit 9"
    done = energyopt("--meter", "none", "-o", str(tmp_path / "m.json"), "--", "sh", "-c", script)
    assert done.returncode == 9
    assert done.stdout == "out\n\n"
    assert "sh: " in done.stderr
    assert "exit code 9" in done.stderr
    assert "Energy is not known." in done.stderr
    document = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    assert document["exit_code"] == 9


def test_one_document_after_the_commands_output() -> None:
    done = energyopt("--json", "--grid-intensity", "400", "--", "sh", "-c", "kill -TERM $$")
    assert done.returncode == 128 + 15
    document = json.loads(done.stdout)
    assert document["signal"] == "SIGTERM"
    for device in document["devices"]:
        assert device["source"] in ("counter", "integrated", "estimated")
        assert device["error"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--", "no-such-command"), 127, "'no-such-command' was not found"),
        (("--grid-intensity", "dirty", "--", "true"), 2, "grams per kWh, or a CSV file"),
    ],
)
def test_refusals(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = energyopt(*arguments)
    assert done.returncode == code
    assert words in done.stderr
