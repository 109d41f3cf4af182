"""Every panel type-checks against the schema that Grafana publishes for 11.6, 12.4 and 13.2: no invented option.

``pytest -m bench tests/bench/test_grafana_schema.py``; needs node, npm and a package registry, and half a minute.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards.catalog import PLUGINS
from dashboards.shipped import shipped_boards
from tests.bench.figures import Report

pytestmark = pytest.mark.bench

SOURCES = Path(__file__).parent / "schema"
VERSIONS = ("11.6", "12.4", "13.2")
MODULES = {
    "bargauge": "bargauge/panelcfg/x/BarGaugePanelCfg",
    "gauge": "gauge/panelcfg/x/GaugePanelCfg",
    "heatmap": "heatmap/panelcfg/x/HeatmapPanelCfg",
    "stat": "stat/panelcfg/x/StatPanelCfg",
    "state-timeline": "statetimeline/panelcfg/x/StateTimelinePanelCfg",
    "table": "table/panelcfg/x/TablePanelCfg",
    "text": "text/panelcfg/x/TextPanelCfg",
    "timeseries": "timeseries/panelcfg/x/TimeSeriesPanelCfg",
    "trend": "trend/panelcfg/x/TrendPanelCfg",
    "xychart": "xychart/panelcfg/x/XYChartPanelCfg",
}
"""Where the schema package keeps a panel kind's options; a kind that is not here has not been thought about."""
WITH_FIELDS = {"bargauge": False, "gauge": False, "stat": False, "text": False}
"""Kinds without field options of their own."""
RESOLUTION = {"11.6": "node10"}
"""The package of 11.6 keeps its panel types outside its export map; the newer ones list them there."""
OPTIONS: dict[str, Any] = {
    "strict": True,
    "noEmit": True,
    "module": "esnext",
    "skipLibCheck": True,
    "types": [],
    "lib": ["es2022", "dom"],
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder a version, with its schema package where an import finds it."""
    root = tmp_path_factory.mktemp("schema")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: the panels cannot be type-checked")
    shutil.copy(SOURCES / "package.json", root)
    quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
    subprocess.run([npm, "install", *quiet], cwd=root, check=True, capture_output=True, timeout=200)
    for version in VERSIONS:
        home = root / version
        (home / "node_modules/@grafana").mkdir(parents=True)
        (root / f"node_modules/schema-{version}").rename(home / "node_modules/@grafana/schema")
        shutil.copy(SOURCES / "shape.ts", home)
        options = {**OPTIONS, "moduleResolution": RESOLUTION.get(version, "bundler")}
        (home / "tsconfig.json").write_text(
            json.dumps({"compilerOptions": options, "files": ["panels.ts", "invented.ts"]})
        )
    return root


def panels(boards: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for board in boards:
        for panel in board["panels"]:
            yield from ([*panel.get("panels", [])] if panel["type"] == "row" else [panel])


def shipped() -> list[dict[str, Any]]:
    return [copy.deepcopy(panel) for plugin in PLUGINS for panel in panels(shipped_boards(plugin))]


def invented() -> list[dict[str, Any]]:
    """A wrong value, an unknown option, an unknown field option and an unknown key, each alone."""
    stat = next(panel for panel in shipped() if panel["type"] == "stat")
    lines = next(panel for panel in shipped() if panel["type"] == "timeseries")
    wrong = [copy.deepcopy(panel) for panel in (stat, stat, lines, lines)]
    wrong[0]["options"]["graphMode"] = "bogus"
    wrong[1]["options"]["colour"] = "red"
    wrong[2]["fieldConfig"]["defaults"]["custom"]["lineWidht"] = 2
    wrong[3]["titel"] = "x"
    return wrong


def script(checked: list[dict[str, Any]]) -> str:
    """One typed constant a panel, each on a line of its own, behind the imports."""
    assert {panel["type"] for panel in checked} <= set(MODULES), "a panel kind whose schema is not known"
    lines = ["import type { PanelOf } from './shape';"]
    for kind, module in MODULES.items():
        name = kind.replace("-", "_")
        lines.append(f"import type * as {name} from '@grafana/schema/dist/esm/raw/composable/{module}_types.gen';")
    for number, panel in enumerate(checked):
        name = panel["type"].replace("-", "_")
        custom = f"{name}.FieldConfig" if WITH_FIELDS.get(panel["type"], True) else "Record<string, never>"
        shape = f"PanelOf<'{panel['type']}', {name}.Options, {custom}>"
        lines.append(f"export const p{number}: {shape} = {json.dumps(panel)};")
    return "\n".join(lines)


@pytest.fixture(scope="module", params=VERSIONS)
def complaints(packages: Path, request: pytest.FixtureRequest) -> list[str]:
    """What the TypeScript compiler says of the shipped panels and of the invented ones, a line each."""
    home = packages / request.param
    (home / "panels.ts").write_text(script(shipped()))
    (home / "invented.ts").write_text(script(invented()))
    compiler = packages / "node_modules/typescript/bin/tsc"
    command = [shutil.which("node") or "node", str(compiler), "-p", "tsconfig.json"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.splitlines()


def test_every_shipped_panel_is_one_of_this_version(
    complaints: list[str], request: pytest.FixtureRequest, figure: Report
) -> None:
    found = [line for line in complaints if not line.startswith(("invented.ts", " "))]
    version = request.node.callspec.params["complaints"]
    figure(f"boards: {len(shipped())} panels, complaints of Grafana {version}'s schema", len(found), "", "0")
    assert found == []


def test_an_invented_option_is_noticed(complaints: list[str]) -> None:
    """The check can fail."""
    first = 2 + len(MODULES)
    said = {line.split(",")[0] for line in complaints if line.startswith("invented.ts")}
    assert said == {f"invented.ts({first + number}" for number in range(len(invented()))}
