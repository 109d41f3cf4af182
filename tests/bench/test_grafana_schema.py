"""Every panel against the types that Grafana publishes on npm: ``pytest -m bench tests/bench/test_grafana_schema.py``.

Needs node, npm and a package registry. The types are Grafana's own, so a misspelt option or a word that an option does
not know is an error of the TypeScript compiler.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards.shipped import shipped_boards

VERSIONS = ("11.6", "12.4", "13.2")
HEAD = """
type Plain<T> = 0 extends 1 & T ? T
  : T extends string ? `${T}`
  : T extends number ? number
  : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]?: Plain<T[K]> }
  : T;
"""

pytestmark = [pytest.mark.bench, pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")]


@pytest.fixture(scope="module", params=VERSIONS)
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one version of the types and the compiler."""
    folder = tmp_path_factory.mktemp("schema")
    (folder / "package.json").write_text('{"name": "check", "private": true}')
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    wanted = [f"@grafana/schema@{request.param}", "typescript@5"]
    done = subprocess.run([*install, *wanted], cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"npm cannot install {wanted[0]}: {done.stderr[-300:]}")
    return folder


def types_file(project: Path, kind: str) -> str:
    """The declarations of a panel kind, or of a dashboard; where they lie differs between versions."""
    root = project / "node_modules/@grafana/schema"
    part = "raw/dashboard/x" if kind == "dashboard" else f"raw/composable/{kind}/panelcfg/x"
    found = sorted(path for path in root.rglob("*types.gen.d.ts") if f"/{part}/" in path.as_posix())
    assert found, f"{kind} has no types"
    return "./" + found[0].relative_to(project).as_posix().removesuffix(".d.ts")


def sources(project: Path, panels: list[dict[str, Any]]) -> Iterator[str]:
    kinds = sorted({panel["type"].replace("-", "") for panel in panels})
    yield f'import {{ Panel, Dashboard }} from "{types_file(project, "dashboard")}";'
    for kind in kinds:
        path = types_file(project, kind)
        has_custom = "FieldConfig" in (project / f"{path}.d.ts").read_text()
        custom = f"{kind}.FieldConfig" if has_custom else "{}"
        yield f'import * as {kind} from "{path}";'
        yield f"type Custom_{kind} = {custom};"
    yield HEAD
    for number, panel in enumerate(panels):
        kind = panel["type"].replace("-", "")
        whole = copy.deepcopy(panel)
        options, custom = whole.pop("options"), whole["fieldConfig"]["defaults"].pop("custom", {})
        whole.pop("targets")  # a query's own fields are its plugin's, not the dashboard's
        yield f"// {panel['title']}"
        yield f"const panel{number}: Plain<Panel> = {json.dumps(whole)};"
        yield f"const options{number}: Plain<{kind}.Options> = {json.dumps(options)};"
        yield f"const custom{number}: Plain<Custom_{kind}> = {json.dumps(custom)};"


def compile_errors(project: Path, panels: list[dict[str, Any]]) -> list[str]:
    lines = "\n".join(sources(project, panels)).splitlines()
    (project / "check.ts").write_text("\n".join(lines))
    flags = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "esnext"]
    command = ["npx", "tsc", *flags, "--moduleResolution", "bundler", "check.ts"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)
    found = []
    for number, words in re.findall(r"check\.ts\((\d+),\d+\): error \w+: (.*)", done.stdout):
        title = next(line for line in reversed(lines[: int(number)]) if line.startswith(("// ", "import")))
        found.append(f"{title.removeprefix('// ')}: {words}")
    assert found or done.returncode == 0, done.stdout
    return found


def all_panels() -> list[dict[str, Any]]:
    return [panel for board in shipped_boards("postgresql") for panel in board["panels"] if panel["type"] != "row"]


def test_every_panel_has_the_types_of_this_grafana(project: Path) -> None:
    assert compile_errors(project, all_panels()) == []


@pytest.mark.parametrize("fault", ["title", "option", "word", "custom"])
def test_a_planted_fault_is_an_error(project: Path, fault: str) -> None:
    panels = copy.deepcopy([panel for panel in all_panels() if panel["type"] in ("stat", "timeseries")])
    stat, series = (next(panel for panel in panels if panel["type"] == kind) for kind in ("stat", "timeseries"))
    if fault == "title":
        stat["titel"] = "x"
    elif fault == "option":
        stat["options"]["grafMode"] = "none"
    elif fault == "word":
        stat["options"]["graphMode"] = "bogus"
    else:
        series["fieldConfig"]["defaults"]["custom"]["lineWidht"] = 2
    assert len(compile_errors(project, panels)) == 1
