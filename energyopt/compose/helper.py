"""Runs the power helper: as a service of the whole machine, or as the child of one process."""

from __future__ import annotations

import logging
import logging.handlers
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import ControlError
from telemetry.control.access import Access, load_access, user_name
from telemetry.control.client import Connection, HelperGoneError
from telemetry.control.helper import PowerHelper

from .power import limiter, socket_path

UNIT = Path("/etc/systemd/system/energyopt-power-helper.service")
EXAMPLE = """\
# Who may change power limits through the helper, besides root. After a change: systemctl reload energyopt-power-helper
# longest = "24h"            # no lease lives longer without being renewed
# [[allow]]
# users = ["llm"]            # names or ids
# devices = ["*"]            # or UUIDs and PCI addresses
# lowest_cap = "200W"        # optional
"""


def run_helper(path: Path | None, config: Path, notify: Callable[[str], None]) -> None:
    """Listen until SIGTERM or SIGINT; SIGHUP reads the allow-list anew.

    Raises ControlError if another helper listens there or the socket cannot be made, ConfigError for a bad allow-list.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    where = path or socket_path()
    helper = PowerHelper(limiter(), lambda: load_access(config), MonotonicClock())
    with listen(where) as listener:
        _heed_signals(helper)
        notify(f"listening at {where} (stop with Ctrl-C); every limit is put back at the end")
        try:
            helper.serve(listener=listener)
        finally:
            where.unlink(missing_ok=True)


def run_inherited(descriptor: int) -> None:
    """Serve one connection of the parent, beyond its end, until everything is put back. Nobody else can connect."""
    handler = logging.handlers.SysLogHandler("/dev/log") if Path("/dev/log").exists() else logging.NullHandler()
    logging.basicConfig(level=logging.INFO, format="energyopt power helper: %(message)s", handlers=[handler])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    helper = PowerHelper(limiter(), Access, MonotonicClock())
    _heed_signals(helper)
    helper.serve(connections=[socket.socket(fileno=descriptor)], linger=False)


def listen(path: Path) -> socket.socket:
    """A socket that everybody may connect to: the helper asks the kernel who they are."""
    try:
        Connection.to(path).close()
        raise ControlError(f"A power helper listens at {path} already.")
    except HelperGoneError:
        pass  # nobody does; what is left of an earlier one is replaced
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(16)
    except OSError as error:
        listener.close()
        raise ControlError(f"The power helper cannot listen at {path}: {error}. It has to run as root.") from error
    return listener


def unit_text() -> str:
    """The systemd unit, with the command of this installation."""
    text = files("telemetry.control").joinpath("power-helper.service").read_text(encoding="utf-8")
    return text.replace("@ENERGYOPT@", shlex.quote(str(Path(sys.executable).with_name("energyopt"))))


def install_helper(config: Path, unit: Path = UNIT) -> list[str]:
    """Write the unit and, where there is none, an allow-list without entries; says what to do next.

    Raises ControlError without permission.
    """
    try:
        unit.write_text(unit_text(), encoding="utf-8")
        if not config.exists():
            config.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            config.write_text(EXAMPLE, encoding="utf-8")
            config.chmod(0o644)
    except OSError as error:
        again = shlex.join([str(Path(sys.executable).with_name("energyopt")), "power-helper", "--install"])
        raise ControlError(f"{error}: run `sudo {again}`.") from error
    owner = Path(sys.executable).resolve().stat().st_uid
    warning = f"warning: {sys.executable} belongs to {user_name(owner)}, who becomes root through it: use an"
    unsafe = [] if owner == 0 else [f"{warning} installation that belongs to root, such as /opt/energyopt"]
    return [
        *unsafe,
        f"wrote {unit} and {config}",
        f"next: name the users who may cap GPUs in {config}, then run",
        "  sudo systemctl daemon-reload && sudo systemctl enable --now energyopt-power-helper",
    ]


def _heed_signals(helper: PowerHelper) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: helper.stop())
    signal.signal(signal.SIGHUP, lambda number, frame: helper.reload())
