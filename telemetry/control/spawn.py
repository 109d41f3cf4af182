"""A helper of one's own: a child process that serves its parent over a socket pair and survives it.

It leads a session of its own, so a Ctrl-C or a closed terminal ends the parent alone; it ends when the parent has gone
and everything is put back.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from energyopt.core.errors import ControlError

from .client import Connection

COMMAND = (
    sys.executable,
    "-P",
    "-c",
    "import sys; from energyopt.cli.main import main; sys.argv[0] = 'energyopt'; sys.exit(main())",
    "power-helper",
)
"""Found through this interpreter: no PATH, no current directory."""


def spawn_helper(command: Sequence[str] = COMMAND) -> Connection:
    """Start the child and connect to it; ``--inherited FD`` names its end. Raises ControlError if it cannot start."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            child = subprocess.Popen(
                [*command, "--inherited", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
    except OSError as error:
        ours.close()
        raise ControlError(f"The power helper could not be started: {error}.") from error
    threading.Thread(target=child.wait, name="power-helper-reaper", daemon=True).start()
    return Connection(ours)
