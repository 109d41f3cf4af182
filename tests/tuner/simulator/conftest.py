"""Where the published tables are, if this checkout has them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tables() -> Path:
    folder = Path(__file__).parents[4] / "shared" / "data" / "energy"
    if not folder.is_dir():
        pytest.skip(f"the published tables are not at {folder}")
    return folder


@pytest.fixture(scope="session")
def traces() -> Path:
    folder = Path(__file__).parents[4] / "shared" / "data" / "traces"
    if not folder.is_dir():
        pytest.skip(f"the published traces are not at {folder}")
    return folder
