"""The boards as they ship and as they would be generated now."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from dashboards.catalog import PLUGINS
from dashboards.shipped import shipped_boards


@pytest.fixture(scope="session")
def generated() -> dict[str, str]:
    """Every generated file, made anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the SDK warns that its classic model has a successor
        from dashboards.generate import texts
    return texts()


@pytest.fixture(scope="session", params=list(PLUGINS))
def boards(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The shipped boards, of either kind of database."""
    return shipped_boards(request.param)
