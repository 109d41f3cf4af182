"""What was found before a limit was changed, on disk before the change: whoever starts next can put it back.

One file a device, created exclusively, so that two processes never cap one device. An entry names its holder by
process id, start time and boot, so a reused id is not mistaken for the holder. The pid namespace must be the same
for all who share a directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from energyopt.core.errors import ControlError

DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
"""A UUID or a PCI address: no slash and no leading dot, so that a file named after it stays in its directory."""
MAX_ENTRY = 4096
PATIENCE = 10.0
"""Seconds to wait for another process that puts back what the dead left."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that cannot be confused with a later one of the same id."""

    pid: int
    started: int
    boot: str

    @classmethod
    def me(cls) -> Holder:
        return cls(os.getpid(), _started(os.getpid()) or 0, _boot())

    @property
    def alive(self) -> bool:
        return self.same_boot and _started(self.pid) == self.started

    @property
    def same_boot(self) -> bool:
        return self.boot == _boot()


@dataclass(frozen=True, slots=True)
class Entry:
    """One device under a limit, in milliwatts as the driver counts them.

    ``found_milliwatts`` is None where the cap was not touched. ``set_milliwatts`` are the caps that are ours: while one
    is replaced by another the driver may stand at either. ``found_clock`` is the driver's own text for the clocks found
    (None where it does not tell).
    """

    device: str
    holder: Holder
    found_milliwatts: int | None
    set_milliwatts: tuple[int, ...]
    clock_locked: bool
    found_clock: str | None = None


def default_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where entries of this user live: gone after a reboot, as the limits are. ENERGYOPT_POWER_JOURNAL overrides it."""
    named = environment.get("ENERGYOPT_POWER_JOURNAL")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/run/energyopt/power")
    runtime = environment.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime else Path.home() / ".local/state"
    return base / "energyopt/power"


class Journal:
    """Entries in one directory, which is created at the first claim, for its owner alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def claim(self, entry: Entry) -> None:
        """Write an entry durably. Raises ControlError if the device has one already or the disk refuses."""
        path = self._path(entry.device)
        fresh = _draft(path)
        try:
            with self.locked():
                _write(fresh, entry)
                try:
                    os.link(fresh, path)
                finally:
                    fresh.unlink()
                self._sync()
        except FileExistsError as error:
            raise ControlError(
                f"{entry.device} is already under a limit; {path} says whose. Wait for it to end, or end it with "
                f"`energyopt cap clear --device {entry.device}`."
            ) from error
        except OSError as error:
            raise ControlError(f"No limit was set, because {path} could not be written first: {error}.") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from claiming, and from putting back what the dead left, at the same time.

        Else one that is slow could put back, and forget, what another has claimed meanwhile. The kernel unlocks for who
        dies. Raises ControlError without a place for it, and if someone holds it for longer than a driver's calls take.
        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ControlError(
                f"No limit was set or put back, because {self._directory} could not be written first: {error}."
            ) from error
        try:
            end = time.monotonic() + PATIENCE
            while not _try_lock(descriptor):
                if time.monotonic() > end:
                    raise ControlError(f"{self._directory} is locked by another process for over {PATIENCE:g} s.")
                time.sleep(0.02)
            yield
        finally:
            os.close(descriptor)

    def replace(self, entry: Entry) -> None:
        """Put a new entry durably in the place of the device's own. Raises ControlError if the disk refuses."""
        path = self._path(entry.device)
        fresh = _draft(path)
        try:
            _write(fresh, entry)
            os.replace(fresh, path)
            self._sync()
        except OSError as error:
            raise ControlError(f"No limit was set, because {path} could not be written first: {error}.") from error

    def release(self, device: str) -> None:
        """Remove an entry; none is fine."""
        try:
            self._path(device).unlink(missing_ok=True)
            self._sync()
        except OSError as error:
            raise ControlError(f"{self._path(device)} could not be removed: {error}.") from error

    def entries(self) -> tuple[Entry, ...]:
        """All entries, those of the living too. Raises ControlError for a file that is not one."""
        found, problems = self.readable()
        if problems:
            raise ControlError(problems[0])
        return found

    def readable(self) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
        """The entries that can be read, and in words what is wrong with the other files."""
        try:
            paths = sorted(self._directory.glob("*.json"))
        except OSError as error:
            return (), (f"{self._directory} could not be listed: {error}.",)
        found: list[Entry] = []
        problems: list[str] = []
        for path in paths:
            try:
                entry = _read(path)
            except ControlError as error:
                problems.append(str(error))
                continue
            if entry is not None:
                found.append(entry)
        return tuple(found), tuple(problems)

    def _path(self, device: str) -> Path:
        if not DEVICE.fullmatch(device):
            raise ControlError(f"{device!r} is not a device identity: expected letters, digits, '-' and '_'.")
        return self._directory / f"{device}.json"

    def _sync(self) -> None:
        if not self._directory.exists():
            return
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _draft(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.new")


def _write(path: Path, entry: Entry) -> None:
    data = json.dumps({"version": 2, **asdict(entry)}).encode()
    with contextlib.suppress(FileNotFoundError):
        path.unlink()  # left by a holder of the same id that died while writing
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> Entry | None:
    """An entry; None if its holder removed it meanwhile."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(MAX_ENTRY))
        holder = data["holder"]
        return Entry(
            device=str(data["device"]),
            holder=Holder(int(holder["pid"]), int(holder["started"]), str(holder["boot"])),
            found_milliwatts=_whole(data["found_milliwatts"]),
            set_milliwatts=_wholes(data["set_milliwatts"]),
            clock_locked=bool(data["clock_locked"]),
            found_clock=_text(data.get("found_clock")),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ControlError(f"{path} is not a journal entry: {error}.") from error


def _whole(value: object) -> int | None:
    if value is None or isinstance(value, int):
        return value
    raise ValueError(f"{value!r} is not a whole number")


def _wholes(value: object) -> tuple[int, ...]:
    """Version 1 wrote one number or null here."""
    if isinstance(value, list):
        return tuple(int(item) for item in value)
    one = _whole(value)
    return () if one is None else (one,)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{value!r} is not a text")


def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Start time in clock ticks since boot (field 22 of ``/proc/PID/stat``); None for no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] == b"Z" else int(fields[19])
