"""The test of the boards' truth lends its Prometheus, the store's test its study, and npm builds the page.

Test files are no modules that can be imported by name here, so what they define is loaded by its path.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parents[1]


def load(path: str) -> ModuleType:
    """A file of the tests, as a module."""
    name = "lent_" + path.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


_truth, _results = load("dashboards/test_prometheus.py"), load("store/test_board_queries.py")
_studies = load("store/conftest.py")
start_prometheus, prometheus = load("dashboards/conftest.py").start_prometheus, _truth.prometheus
deployment, spec, asked = _studies.deployment, _studies.spec, _results.asked


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The address of a database that does not hold anything yet."""
    return f"sqlite:///{tmp_path / 'results' / 'energyopt.db'}"


@pytest.fixture(scope="session")
def truth() -> ModuleType:
    """What the panels of the Prometheus boards must show, and how long a window is."""
    return _truth


@pytest.fixture(scope="session")
def results() -> ModuleType:
    """A study with known results."""
    return _results


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built page; ENERGYOPT_BOARD_PAGE names one that is built already, for work on the boards."""
    if ready := os.environ.get("ENERGYOPT_BOARD_PAGE"):
        return Path(ready)
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("render") / "page"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__", "node_modules", "dist"))
    install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    for command, seconds in ((install, 600), (["npm", "run", "build"], 600)):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, done.stderr[-2000:]
    return folder / "dist"


class Quiet(SimpleHTTPRequestHandler):
    """Files, without a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def address(built: Path) -> Iterator[str]:
    """The built page on a loopback port."""
    with _serving(built) as url:
        yield url
