"""The Grafana double is judged by tests that real servers pass: the integration suite of the Python client for Grafana.

The client lives in an environment of its own, because its HTTP library replaces the module ``urllib3``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # fetches the client and runs its own suite in an environment of its own

CLIENT = "grafana-client==5.1.4"
ROOMS = ("folder", "datasource_base", "dashboard", "dashboard_versions", "alerting_provisioning", "plugin", "health")
BEYOND = (
    "proxy_data_query",  # the double evaluates no query
    "test_series",
    "test_prometheus",
    "test_datasource_by_uid",
    "install",  # nor does it install or run plugins
    "health_core",
    "metrics",
)
SERVICES = '''
import os
import pytest


class Services:
    """Answers as the container fixtures of the suite do, with the double's address."""

    docker_ip = "127.0.0.1"

    def start(self, *names): ...

    def wait_for_service(self, name, port):
        return int(os.environ["DOUBLE_PORT"])

    port_for = wait_for_service

    def wait_until_responsive(self, **how): ...


@pytest.fixture(scope="session")
def docker_services():
    return Services()
'''


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's source distribution, unpacked beside an environment that can run its tests."""
    root = tmp_path_factory.mktemp("client")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    fetched = [*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", str(root), CLIENT]
    if subprocess.run(fetched, capture_output=True, check=False).returncode:
        pytest.skip("the package registry cannot be reached")
    subprocess.run([sys.executable, "-m", "venv", str(root / "venv")], check=True)
    python = str(root / "venv/bin/python")
    subprocess.run([*pip, "--python", python, "install", CLIENT, "pytest", "verlib2"], check=True, capture_output=True)
    with tarfile.open(next(root.glob("*.tar.gz"))) as archive:
        archive.extractall(root, filter="data")
    (root / "container_double.py").write_text(SERVICES)
    return root


def test_the_double_passes_the_tests_that_real_servers_pass(suite: Path, url: str) -> None:
    source = next(suite.glob("grafana_client-*/test")).parent
    tests = [f"test/elements/test_{room}.py" for room in ROOMS]
    options = ["-q", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "-p", "container_double"]
    chosen = ["-k", " and ".join(f"not {name}" for name in BEYOND)]
    where = {"PYTHONPATH": f"{suite}:{source}", "DOUBLE_PORT": url.rsplit(":", 1)[1], "PATH": os.defpath}
    command = [str(suite / "venv/bin/python"), "-m", "pytest", *options, *chosen, *tests]
    done = subprocess.run(command, cwd=source, env=where, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(done.stdout.rsplit("\n", 2)[-2].split(" passed")[0].split()[-1]) >= 60
