"""``energyopt study``: files that describe studies, and revisions of studies whose space has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from energyopt.compose.results import open_session
from energyopt.compose.study_files import plan_file, read_study_file, revise
from tuner.study_file import study_schema

from .output import message_console, print_json, result_console
from .run import run_and_print
from .studies import Db, Json
from .tune import show_plan

File = Annotated[Path, typer.Argument(help="YAML, TOML or JSON; `energyopt study schema` says what may be in it.")]


def validate(file: File, as_json: Json = False) -> None:
    """Check a study file on this machine and show what it would do; nothing is measured or stored."""
    planned = plan_file(read_study_file(file))
    if as_json:
        print_json(planned.document())
        return
    show_plan(result_console(), planned)
    result_console().print(f"{file} is valid. Run it: energyopt tune --study {file}", markup=False, soft_wrap=True)


def schema() -> None:
    """The JSON schema of study files."""
    print_json(study_schema())


def revise_study(
    study: Annotated[str, typer.Argument(help="Id, the unique beginning of one, or `latest`.")],
    file: File,
    db: Db = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the report.")] = None,
    as_json: Json = False,
) -> None:
    """Change the space of a study: a new revision goes on with every trial that still fits."""
    session = open_session(db, out)
    found = revise(session, session.store.study(study).id, plan_file(read_study_file(file)))
    message_console().print(
        f"Study {found.study.id} goes on with {found.reused} of {found.measured} trials.", markup=False
    )
    run_and_print(session, found.study.id, as_json=as_json)
