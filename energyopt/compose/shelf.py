"""Uploaded workloads: traces in one folder, each described when it is put there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from pathlib import Path

from energyopt.core.errors import ConfigError, NotFoundError, StoreError
from tuner.workload.formats import READERS, read_trace
from tuner.workload.statistics import describe

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
MOST = 1000


class WorkloadFolder:
    """A ``WorkloadShelf`` in ``folder``, which is made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[dict[str, object]]:
        with contextlib.suppress(FileNotFoundError):
            entries = [entry for entry in os.scandir(self._folder) if _NAME.fullmatch(entry.name)]
            return [{"name": e.name, "bytes": e.stat().st_size} for e in sorted(entries, key=lambda e: e.name)]
        return []

    def put(self, name: str, content: bytes, form: str) -> dict[str, object]:
        """Read first, keep then: what is no trace never gets its name."""
        path = self._path(name)
        if form != "auto" and form not in READERS:
            raise ConfigError(f"format = {form[:20]!r} is not known: allowed are auto, {', '.join(READERS)}.")
        part = self._folder / f".{secrets.token_hex(8)}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not path.exists() and len(self.names()) >= MOST:
                raise ConfigError(f"{MOST} workloads are kept, which is all: delete one first.")
            part.write_bytes(content)
            found = self._description(part, name, form)
            part.replace(path)
        except OSError as error:
            raise StoreError(f"The workload cannot be kept: {error.strerror}.") from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        return found | {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def describe(self, name: str) -> dict[str, object]:
        path = self._path(name)
        if not path.is_file():
            raise NotFoundError(f"There is no workload {name[:80]!r}.")
        return self._description(path, name, "auto")

    def remove(self, name: str) -> None:
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            raise NotFoundError(f"There is no workload {name[:80]!r}.") from None

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name[:80]!r} is no name for a workload: lower-case letters, digits, '.', '_' and '-'.")
        return self._folder / name

    def _description(self, path: Path, name: str, form: str) -> dict[str, object]:
        try:
            statistics = describe(read_trace(path, form=form))
        except ConfigError as error:  # it names the file, which is not the client's business
            message = error.message.replace(str(path), name).replace(path.name, name)
            raise ConfigError(message) from error
        return {"name": name, "statistics": statistics.model_dump(mode="json") | {"name": name}}
