"""A command runs as if nobody measured it: arguments, streams, environment, signals and exit code are its own."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from energyopt.compose.command import CommandError, Ended, held_signals, run_command
from energyopt.core.clock import MonotonicClock
from energyopt.core.units import Seconds

ROOT = Path(__file__).parents[2]
RUN = """
import os, sys
from energyopt.compose.command import held_signals, run_command
from energyopt.core.clock import MonotonicClock
with held_signals():
    ended = run_command(sys.argv[1:], os.environ, MonotonicClock(), on_tick=lambda ran: None, every=0.05)
print("ended", ended.exit_code, ended.signal, flush=True)
sys.exit(ended.exit_code)
"""


def run(*command: str, **environment: str) -> Ended:
    with held_signals():
        return run_command(
            command, {**os.environ, **environment}, MonotonicClock(), on_tick=lambda ran: None, every=0.05
        )


def python(script: str) -> tuple[str, ...]:
    return sys.executable, "-S", "-c", textwrap.dedent(script)


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_its_own(code: int) -> None:
    ended = run("sh", "-c", f"exit {code}")
    assert (ended.exit_code, ended.signal) == (code, None)
    assert 0 < ended.end - ended.start < 10


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE])
def test_killed_by_a_signal_is_128_and_the_signal(number: signal.Signals) -> None:
    ended = run("sh", "-c", f"kill -{int(number)} $$")
    assert (ended.exit_code, ended.signal) == (128 + number, number.name)


def test_a_command_that_is_not_there_or_not_one(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no program", encoding="utf-8")
    cases = {"no-such-command-anywhere": 127, str(tmp_path / "data"): 126, str(tmp_path): 126}
    for command, code in cases.items():
        with pytest.raises(CommandError) as refused:
            run(command)
        assert refused.value.exit_code == code


def test_no_shell_reads_the_arguments(tmp_path: Path) -> None:
    wild = f"$(touch {tmp_path}/made); * `id` > {tmp_path}/redirected"
    out = tmp_path / "out"
    script = "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))"
    assert run(sys.executable, "-S", "-c", script, str(out), wild, "").exit_code == 0
    assert out.read_text(encoding="utf-8") == repr([wild, ""])
    assert list(tmp_path.iterdir()) == [out]


def test_streams_and_environment_pass_through() -> None:
    script = "import os, sys; sys.stdout.write(sys.stdin.read().upper() + os.environ['MARK']); sys.stderr.write('err')"
    done = subprocess.run(
        [sys.executable, "-c", RUN, sys.executable, "-S", "-c", script],
        input="abc",
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MARK": "!"},
        timeout=60,
        check=True,
    )
    assert done.stdout == "ABC!ended 0 None\n"
    assert done.stderr == "err"


WAITS = """
    import signal, sys, time
    counts = {}
    def note(number, frame):
        counts[number] = counts.get(number, 0) + 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, note)
    print("ready", flush=True)
    end = time.monotonic() + 20
    while signal.SIGTERM not in counts and time.monotonic() < end:
        time.sleep(0.05)
    print("got", counts.get(signal.SIGINT, 0), counts.get(signal.SIGUSR1, 0), flush=True)
    sys.exit(5)
"""


def test_signals_sent_to_us_reach_it_once_each() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, *python(WAITS)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == "ready\n"
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            ours.send_signal(number)
            time.sleep(0.3)
        assert ours.stdout.readline() == "got 1 1\n"
        assert ours.stdout.readline() == "ended 5 None\n"
    assert ours.returncode == 5


def test_ctrl_c_on_the_terminal_reaches_it_once() -> None:
    """It is in the terminal's group and receives Ctrl-C itself: passing it on would be a second one."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", RUN, *python(WAITS)])
    seen = ""
    try:
        seen += _read_until(terminal, "ready")
        os.write(terminal, b"\x03")
        time.sleep(0.5)
        os.kill(pid, signal.SIGTERM)
        seen += _read_until(terminal, "ended")
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert "got 1 0" in seen
    assert os.waitstatus_to_exitcode(status) == 5


def _read_until(terminal: int, word: str) -> str:
    seen = ""
    while word not in seen:
        seen += os.read(terminal, 4096).decode()
    return seen


def test_what_was_ignored_before_stays_ignored() -> None:
    """As under nohup: neither we nor the command begin to care about it."""
    found = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ended = run(*python("import signal, sys; sys.exit(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"))
        assert ended.exit_code == 1
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, found)


def test_handlers_and_mask_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    run("true")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_ticks_while_it_runs_and_cpu_time_after() -> None:
    ticks: list[Seconds] = []
    with held_signals():
        ended = run_command(
            python(
                "end = __import__('time').process_time() + 0.3\nwhile __import__('time').process_time() < end: pass"
            ),
            os.environ,
            MonotonicClock(),
            on_tick=ticks.append,
            every=0.02,
        )
    assert len(ticks) >= 3
    assert ticks == sorted(ticks)
    assert ended.cpu_seconds >= 0.3
