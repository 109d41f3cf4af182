"""Where a study's artifacts go."""

from __future__ import annotations

from pathlib import Path

import pytest

from energyopt.compose.results import open_session, write_artifact
from energyopt.core.errors import StoreError


def test_artifacts_lie_beside_the_database_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    assert open_session(None, None).artifacts == tmp_path / "own" / "energyopt" / "studies"
    assert open_session(str(tmp_path / "team" / "x.db"), None).artifacts == tmp_path / "team" / "studies"
    assert open_session(f"sqlite:///{tmp_path}/team/x.db", None).artifacts == tmp_path / "team" / "studies"
    assert open_session(str(tmp_path / "x.db"), tmp_path / "out").artifacts == tmp_path / "out"


def test_a_named_database_needs_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    assert open_session(str(tmp_path / "x.db"), None).artifacts == tmp_path / "studies"


def test_an_artifact_that_cannot_be_written_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()  # the rename at the end fails, as a full disk would fail before it
    with pytest.raises(StoreError, match=r"report\.html cannot be written"):
        write_artifact(tmp_path, "report.html", "text/html", b"page")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
