"""Where the recorded traces lie, and a maker of small files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.workload.mooncake import read_mooncake
from tuner.workload.trace import Trace

TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces"


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of recorded traces beside the checkout."""
    if not TRACES.is_dir():
        pytest.skip(f"no recorded traces at {TRACES}")
    return TRACES


Rows = Callable[..., Path]


@pytest.fixture
def jsonl(tmp_path: Path) -> Rows:
    """``jsonl({...}, "not json", ...)`` writes one line each; a text stands as it is."""

    def write(*rows: object) -> Path:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return write


@pytest.fixture(scope="session")
def conversation(traces: Path) -> Trace:
    """The public Mooncake conversation trace, read once."""
    return read_mooncake(traces / "mooncake" / "conversation_trace.jsonl")
