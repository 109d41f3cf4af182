"""Whether the kernel killed something for memory while a trial ran: the same evidence for every kind of engine."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

VMSTAT = Path("/proc/vmstat")
CGROUPS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Of the root that this process sees, in either version: a container's own limit."""
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of what was killed: itself, or by the word of a shell or a launcher that waited for it."""
_WORDS = re.compile(rb"\b(?:SIGKILL|[Kk]illed|exit ?code:? -9|died unexpectedly|EngineDead)", re.ASCII)
_TAIL = 4096


class KernelKills:
    """Counts from now on. ``explain`` says whether they are what a process died of."""

    def __init__(self, vmstat: Path = VMSTAT, cgroups: Sequence[Path] = CGROUPS) -> None:
        self._files = (vmstat, *cgroups)
        self._before = self._counts()

    @property
    def grew(self) -> bool:
        """Whether any count that can be read is higher than at the start."""
        now = self._counts()
        return any(now[file] > count for file, count in self._before.items() if file in now)

    def explain(self, code: int, tail: bytes) -> bool:
        """Whether a process that ended so, with those last words, was a victim: itself, or what it had started.

        An engine's front outlives its worker for a moment and then tells of its death.
        """
        return (code in KILLED or _WORDS.search(tail[-_TAIL:]) is not None) and self.grew

    def _counts(self) -> dict[Path, int]:
        found = {file: oom_kills(file) for file in self._files}
        return {file: count for file, count in found.items() if count is not None}


def oom_kills(file: Path) -> int | None:
    """Processes killed for memory so far, as a file of the kernel counts them; None where it does not tell."""
    try:
        with file.open(encoding="ascii", errors="replace") as opened:
            text = opened.read(2**20)
    except OSError:
        return None
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match.group(1)) if match else None
