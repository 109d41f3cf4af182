"""Logs and artifacts of a study: files in its folder, and no others."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from energyopt.core.errors import NotFoundError
from energyopt.core.results import Result
from energyopt.core.study import Artifact

from ..access import study_of
from ..documents import answer
from ..door import Reader, ServicesDep

router = APIRouter()
MAX_FILE = 64 * 2**20
_SAFE = ("image/png", "application/json", "text/plain")
"""Shown by a browser as they are; everything else is a download, so that a report cannot act in our name."""


class ArtifactList(Result):
    """Files of a study. ``path`` is where they lie on the host of the worker."""

    items: tuple[Artifact, ...]


@router.get("/v1/studies/{study_id}/artifacts", response_model=ArtifactList)
def list_artifacts(study_id: str, services: ServicesDep, caller: Reader) -> Response:
    """Report, picture and manifest, once the study has ended."""
    study = study_of(services, caller, study_id)
    return answer(ArtifactList(items=tuple(services.studies.artifacts(study.id))))


@router.get("/v1/studies/{study_id}/artifacts/{name}")
def get_artifact(study_id: str, name: str, services: ServicesDep, caller: Reader) -> Response:
    """One of them."""
    study = study_of(services, caller, study_id)
    found = next((one for one in services.studies.artifacts(study.id) if one.name == name), None)
    if found is None:
        raise NotFoundError(f"Study {study.id} has no artifact {name[:60]!r}.")
    content = read_within(services.artifacts / study.id, Path(found.path))
    plain = found.media_type in _SAFE
    headers = {"content-disposition": "inline" if plain else "attachment", "x-content-type-options": "nosniff"}
    return Response(content, media_type=found.media_type, headers=headers)


@router.get("/v1/studies/{study_id}/logs")
def logs(
    study_id: str,
    services: ServicesDep,
    caller: Reader,
    tail: Annotated[int, Query(ge=1, le=10_000, description="Lines of each trial's log.")] = 100,
) -> Response:
    """What trials wrote to standard error, the newest last. Empty where they said nothing or ran on another host."""
    study = study_of(services, caller, study_id)
    folder = services.artifacts / study.id / "logs"
    parts = []
    for path in _newest(folder, 20):
        lines = read_within(folder, path).decode(errors="replace").splitlines()[-tail:]
        parts.append("\n".join([f"==> {path.name} <==", *lines, ""]))
    return Response("\n".join(parts), media_type="text/plain", headers={"cache-control": "no-store"})


def read_within(root: Path, path: Path) -> bytes:
    """The content of a plain file below ``root``. Raises NotFoundError for anything else, links out of it included."""
    try:
        real = Path(os.path.realpath(path, strict=True))
        if not real.is_relative_to(os.path.realpath(root)):
            raise NotFoundError("This file is not in the folder of its study.")
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise NotFoundError("This file is not on the host of the service.") from error
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE:
            raise NotFoundError("This is no plain file, or one too large to be sent.")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_FILE)
    finally:
        os.close(descriptor)


def _newest(folder: Path, count: int) -> list[Path]:
    try:
        found = [Path(entry.path) for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)[-count:]
    except OSError:
        return []  # nothing was logged here
