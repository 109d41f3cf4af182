"""Pages of the reference, made from the code whenever the documentation is built: they cannot differ from it.

A hook of MkDocs (``hooks`` in mkdocs.yml). Each page is a function without arguments that gives Markdown.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast, get_args

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

from api.app import create_app
from api.jobs.app import create_job_app
from energyopt import __version__
from energyopt.cli.verbs import GROUPS, VERBS, Verb
from energyopt.compose.body_policy import BodyPolicy
from energyopt.compose.job_planner import HostPlanner, PlanMaker
from energyopt.core.clock import MonotonicClock
from energyopt.core.config import (
    Deployment,
    EngineConfig,
    KvConfig,
    ParallelLayout,
    PoolConfig,
    PowerConfig,
    TierConfig,
)
from energyopt.core.study import Budget, StudySpec
from energyopt.store.tables import Base
from telemetry.catalog import CATALOG

Page = Callable[[], str]
MODELS = (StudySpec, Budget, Deployment, PoolConfig, EngineConfig, KvConfig, TierConfig, ParallelLayout, PowerConfig)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those of the folder."""
    for name, page in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    return files


def commands() -> str:
    """Every verb with its arguments and options."""
    parts = [
        "# Commands",
        "Before any verb: `--debug` shows the traceback of an error, `--version` prints the version.",
    ]
    group = ""
    for verb in VERBS:
        if len(verb.words) == 2 and verb.words[0] != group:
            group = verb.words[0]
            parts.append(f"`energyopt {group}`: {GROUPS[group]}")
        parts += [f"## energyopt {' '.join(verb.words)}", _escape(verb.help), _options(verb)]
    return _page(parts)


def configuration() -> str:
    """Every field of the configuration, as study files and the service's bodies have them."""
    parts = ["# Configuration", "An unknown key is an error. Units are SI: seconds, watts, hertz, bytes, tokens."]
    for model in MODELS:
        parts += [f"## {model.__name__}", _escape(inspect.getdoc(model) or ""), _fields(model)]
    return _page(parts)


def rest() -> str:
    """Every route of both servers."""
    parts = ["# REST", "Each server describes itself in full, with examples, at `/openapi.json`."]
    for title, document in (
        ("The job service: energyopt api", _job_document()),
        ("A model's server: energyopt serve", _serve_document()),
    ):
        rows = [
            (f"`{method.upper()} {path}`", _escape(str(what.get("description") or what.get("summary") or "")))
            for path, methods in document["paths"].items()
            for method, what in methods.items()
        ]
        parts += [f"## {title}", _table(("route", "what it does"), rows)]
    return _page(parts)


def metrics() -> str:
    """Every metric."""
    rows = [
        (f"`{one.name}`", one.kind, " ".join(f"`{label}`" for label in one.labels), _escape(one.help))
        for one in CATALOG
    ]
    about = "A value that is not known has no series. `vllm:` names repeat vLLM's, with vLLM's meaning."
    return _page(["# Metrics", about, _table(("name", "kind", "labels", "what it is"), rows)])


def tables() -> str:
    """Every table of the database."""
    described = {one.__tablename__: one for one in Base.__subclasses__()}
    parts = [
        "# Tables",
        "SQLite or PostgreSQL. Times are UTC. `energyopt db upgrade` brings a database to this version.",
    ]
    for name, table in sorted(Base.metadata.tables.items()):
        rows = [
            (
                f"`{column.name}`",
                str(column.type),
                "key" if column.primary_key else "",
                "yes" if column.nullable else "",
            )
            for column in table.columns
        ]
        doc = inspect.getdoc(described[name]) or ""
        parts += [f"## {name}", _escape(doc), _table(("column", "type", "", "may be NULL"), rows)]
    return _page(parts)


PAGES: Mapping[str, Page] = {
    "commands": commands,
    "configuration": configuration,
    "rest": rest,
    "metrics": metrics,
    "tables": tables,
}


def _options(verb: Verb) -> str:
    app = typer.Typer()
    app.command()(verb.load())
    rows = []
    for parameter in typer.main.get_command(app).params:
        if parameter.name in ("help", "install_completion", "show_completion"):
            continue
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        shown = names if names.startswith("`-") else f"`{(parameter.name or '').upper()}`"
        rows.append((shown, _escape(str(getattr(parameter, "help", "") or "")), _default(parameter)))
    return _table(("option", "what it does", "default"), rows) if rows else ""


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    return "" if value in (None, "", (), []) or callable(value) else f"`{value}`"


def _fields(model: type[BaseModel]) -> str:
    rows = []
    for name, field in model.model_fields.items():
        kind = _escape(_kind(field.annotation))
        default = "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
        rows.append((f"`{name}`", kind, default if len(default) < 60 else "all defaults"))
    return _table(("key", "type", "default"), rows)


def _kind(annotation: object) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return re.sub(r"[a-z_]+\\.(?=[a-zA-Z])", "", str(annotation)).replace("NoneType", "None")


def _job_document() -> dict[str, Any]:
    limits = SimpleNamespace(max_watchers=1, max_body_bytes=1, rate=1.0, burst=1)
    services = SimpleNamespace(
        version=__version__,
        tail=None,
        limits=limits,
        planner=HostPlanner(BodyPolicy()),
        plans=PlanMaker(),
        clock=MonotonicClock(),
        devices=SimpleNamespace(look=dict),
    )
    return create_job_app(cast(Any, services)).openapi()


def _serve_document() -> dict[str, Any]:
    services = SimpleNamespace(version=__version__, limits=SimpleNamespace(max_body_bytes=1))
    return create_app(cast(Any, services)).openapi()


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(_lines(heads, rows))


def _lines(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in row)} |"


def _escape(text: str) -> str:
    return text.replace("``", "`").replace("<", "&lt;").replace("[", "\\[")


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
