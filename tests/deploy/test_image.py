"""The image: for three kinds of device from one file, as nobody in particular, with the torch that was tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", " ").splitlines()
INSTRUCTIONS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]


def values(word: str) -> list[str]:
    return [rest for name, rest in INSTRUCTIONS if name == word]


def test_it_does_not_run_as_root_and_its_user_is_the_one_of_the_manifests() -> None:
    assert values("USER") == ["10001"]
    manifests = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/api.yaml").read_text()))
    pods = [one["spec"]["template"]["spec"] for one in manifests if one["kind"] == "Deployment"]
    assert [pod["securityContext"]["runAsUser"] for pod in pods] == [10001]


def test_it_fetches_by_package_name_alone() -> None:
    assert values("ADD") == []
    (commands,) = values("RUN")
    assert not re.search(r"\b(curl|wget)\b", commands)
    assert values("FROM") == ["python:3.11-slim"]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("#   docker build")])
def test_every_way_to_build_it_names_extras_that_there_are(line: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    given = re.search(r"EXTRAS=(\S+)", line)
    assert set((given[1] if given else "postgres").split(",")) <= set(extras)


def test_torch_is_the_one_of_the_constraints_and_stays() -> None:
    (commands,) = values("RUN")
    first, *others = [part.strip() for part in commands.split("&&") if "pip install" in part]
    found = re.fullmatch(
        r"grep -E '(?P<line>[^']+)' /src/constraints\.txt \| xargs pip install "
        r'--index-url "https://download\.pytorch\.org/whl/\$\{TORCH\}"',
        first,
    )
    assert found is not None, first
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if re.search(found["line"], line)]
    assert [line.split("==")[0] for line in pinned] == ["torch"]
    assert all("-c /src/constraints.txt" in other or "--no-deps" in other for other in others)


def test_each_kind_of_device_has_a_way_to_build_it() -> None:
    ways = [line for line in LINES if line.startswith("#   docker build")]
    (default,) = [rest.partition("=")[2] for rest in values("ARG") if rest.startswith("TORCH=")]
    indexes = [found[1] if (found := re.search(r"TORCH=(\S+)", way)) else default for way in ways]
    assert [re.sub(r"[0-9.]+$", "", index) for index in indexes] == ["cpu", "cu", "rocm"]
