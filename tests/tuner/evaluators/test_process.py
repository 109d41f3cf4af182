"""A watched child: its lines, its tail, its end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from energyopt.core.errors import CrashError, LaunchError, TrialTimeoutError
from energyopt.core.units import Seconds
from tuner.evaluators.process import TAIL_BYTES, WatchedProcess


def start(code: str, message: bytes = b"", grace: float = 5.0) -> WatchedProcess:
    return WatchedProcess([sys.executable, "-S", "-c", code], message, env=None, grace=Seconds(grace))


def test_lines_arrive_whole_and_an_unfinished_one_is_none() -> None:
    code = "import sys; n = int(input()); sys.stdout.write('a' * n + '\\nb\\n\\nc'); sys.stderr.write('done')"
    with start(code, b"70000") as child:
        assert list(child.lines(Seconds(20), 10**6)) == [b"a" * 70000, b"b", b""]
    assert child.returncode == 0
    assert child.tail == b"done"


def test_the_input_stays_open_after_the_message() -> None:
    code = "import sys, select; input(); print(select.select([0], [], [], 0.2)[0], flush=True)"
    with start(code, b"hello") as child:
        assert list(child.lines(Seconds(20), 100)) == [b"[]"]


def test_a_long_line_is_refused_whether_it_ends_or_not() -> None:
    for text in ("'x' * 101 + '\\n'", "'x' * 101"):
        with (
            start(f"import sys, time; sys.stdout.write({text}); sys.stdout.flush(); time.sleep(60)") as child,
            pytest.raises(CrashError, match="more than 100 bytes"),
        ):
            list(child.lines(Seconds(20), 100))


def test_a_line_of_just_the_limit_is_fine() -> None:
    with start("print('x' * 100)") as child:
        assert list(child.lines(Seconds(20), 100)) == [b"x" * 100]


def test_a_child_is_asked_to_end_before_it_is_made_to(tmp_path: Path) -> None:
    note = tmp_path / "note"
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        f"    open({str(note)!r}, 'w').write('cleaned up'); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with start(code) as child:
        assert next(child.lines(Seconds(20), 100)) == b"ready"
    assert note.read_text() == "cleaned up"
    assert child.returncode == 3


def test_time_is_up_also_for_a_child_that_talks() -> None:
    code = "import time\nwhile True: print('still here', flush=True); time.sleep(0.01)"
    with start(code) as child, pytest.raises(TrialTimeoutError, match=r"within 0\.5 s"):
        list(child.lines(Seconds(0.5), 100))


def test_a_flood_on_stderr_neither_blocks_nor_grows() -> None:
    with start("import sys; sys.stderr.write('x' * 1_000_000 + 'end'); print('out')") as child:
        assert list(child.lines(Seconds(20), 100)) == [b"out"]
    assert len(child.tail) == TAIL_BYTES
    assert child.tail.endswith(b"xend")


def test_waiting_ends_with_the_child() -> None:
    with start("import os, time; os.close(1); time.sleep(0.2)") as child:
        assert list(child.lines(Seconds(20), 100)) == []
        began = time.monotonic()
        child.wait(Seconds(20))
        assert time.monotonic() - began < 5
    assert child.returncode == 0


def test_the_environment_is_the_one_given() -> None:
    code = "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))"
    with WatchedProcess([sys.executable, "-S", "-c", code], b"", env={"ONLY": "this"}) as child:
        assert list(child.lines(Seconds(20), 100)) == [b"['ONLY']"]


def test_a_command_that_cannot_start_is_named(tmp_path: Path) -> None:
    file = tmp_path / "not-a-program"
    file.write_text("")
    for command in (str(file), str(tmp_path / "absent")):
        with pytest.raises(LaunchError, match="cannot be started"):
            WatchedProcess([command], b"", env=None)
