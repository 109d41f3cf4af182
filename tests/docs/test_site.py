"""The documentation builds without a warning, its reference holds what the code has, and its commands are real."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from energyopt.cli.main import build_app
from energyopt.cli.verbs import VERBS
from energyopt.core.errors import EnergyoptError
from energyopt.store import service_tables
from energyopt.store.tables import Base
from telemetry.catalog import CATALOG

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
RUN_ELSEWHERE = ("tune smollm2-135m --quick", "studies show latest")
"""`make run` is the first, which takes minutes; the other shows its study (tests/cli)."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def text(site: Path, page: str) -> str:
    return (site / page / "index.html").read_text(encoding="utf-8")


def test_the_reference_holds_what_the_code_has(site: Path) -> None:
    commands, tables, metrics = (text(site, f"reference/{name}") for name in ("commands", "tables", "metrics"))
    assert [verb.words for verb in VERBS if f"energyopt {' '.join(verb.words)}<" not in commands] == []
    assert service_tables.FrontRow.__tablename__ in Base.metadata.tables, "all of them are known"
    assert [name for name in Base.metadata.tables if name not in tables] == []
    assert [one.name for one in CATALOG if one.name not in metrics] == []
    routes = text(site, "reference/rest")
    assert "POST /v1/studies" in routes
    assert "POST /v1/chat/completions" in routes
    assert "max_num_batched_tokens" in text(site, "reference/configuration")


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r'<(?:script[^>]*\bsrc|link[^>]*rel="?stylesheet"?[^>]*\bhref|img[^>]*\bsrc)="?(https?://[^" >]+)'
    )
    found = {match for page in site.rglob("*.html") for match in loads.findall(page.read_text(encoding="utf-8"))}
    assert found == set()


def commands(path: Path) -> Iterator[tuple[str, bool]]:
    """Command lines of a page, and whether its reader is meant to type them just as they are (after a ``$``)."""
    for block in BLOCK.findall(path.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"\s*(\$ )?(?:[A-Z_]+=\S+ )*(?:sudo \S*)?energyopt (.*)", line)
            if found:
                yield found[2], bool(found[1])


WRITTEN = [
    (path.relative_to(ROOT), line, typed)
    for path in PAGES
    for line, typed in commands(path)
    if " ... " not in line  # an excerpt
]


def arguments(line: str) -> list[str]:
    return shlex.split(line.removesuffix("&"), comments=True)


@pytest.mark.parametrize(("page", "line"), [(page, line) for page, line, _ in WRITTEN], ids=lambda part: str(part)[:60])
def test_every_command_can_be_parsed(page: Path, line: str) -> None:
    words = arguments(line)
    command = typer.main.get_command(build_app(words))
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    if "--help" not in words:
        command.make_context("energyopt", words)


ELSEWHERE = {(page, line) for page, line, _ in WRITTEN if line in RUN_ELSEWHERE}
TYPED = sorted({(page, line) for page, line, typed in WRITTEN if typed and page.parent.name == "tutorials"} - ELSEWHERE)


@pytest.mark.parametrize(("page", "line"), TYPED, ids=lambda part: str(part)[:60])
def test_what_a_tutorial_has_its_reader_type_works(
    page: Path, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if not line.startswith("db upgrade"):  # its readers have a database by then
        CliRunner().invoke(build_app(["db", "upgrade"]), ["db", "upgrade"], catch_exceptions=False)
    done = CliRunner().invoke(build_app(arguments(line)), arguments(line))
    if line == "cap show" and isinstance(done.exception, EnergyoptError):
        return  # no GPU here, and the page says that it says so
    assert done.exit_code == 0, (done.output, done.exception)


STUDIES = [
    (path.relative_to(ROOT), textwrap.dedent(block))
    for path in PAGES
    for block in re.findall(r"^ *```yaml\n(.*?)^ *```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    if re.search(r"^ *slos:", block, re.MULTILINE)
]


@pytest.mark.parametrize(("page", "study"), STUDIES, ids=lambda part: str(part)[:30])
def test_every_study_file_of_a_page_is_valid(page: Path, study: str, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(study, encoding="utf-8")
    words = ["study", "validate", str(file)]
    done = CliRunner().invoke(build_app(words), words)
    if isinstance(done.exception, EnergyoptError) and "/models/" in study:
        assert "/models/" in str(done.exception)  # a checkpoint of the reader's
        return
    assert done.exit_code == 0, (done.output, done.exception)


def test_pages_show_study_files() -> None:
    assert len(STUDIES) >= 3
