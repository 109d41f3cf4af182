"""A table is input from outside: only what a tuner could have written on this machine is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.choices import Plan
from kernels.platform import arch_named
from kernels.table import (
    MAX_BYTES,
    Device,
    Entry,
    EntryEnergy,
    Table,
    TableError,
    choices_of,
    mismatch,
    read_table,
    write_table,
)
from kernels.tuning.space import permits

HERE = Device(device="NVIDIA H200", architecture="sm_90", driver="580.1", triton="3.9.0")
PLAN = Plan(16, 64, 4, 3, 4)
ENTRY = Entry(
    op="paged_decode", heads=32, kv_heads=8, width=128, dtype="bfloat16", rows=64, length=8192, plan=PLAN.as_dict(),
    seconds=1e-4, energy=EntryEnergy(joules=0.05, error=1e-3, source="counter"), default_seconds=1.1e-4,
    default_energy=EntryEnergy(joules=0.06, error=1e-3, source="counter"), tried=20, failed=1,
)  # fmt: skip
TABLE = Table(measured=HERE, objective="energy", date="2026-11-30", complete=True, entries=(ENTRY,))


def allowed(problem: Any, plan: Plan) -> bool:
    return permits(arch_named("sm_90"), problem, plan)


def write(path: Path, **changes: Any) -> Path:
    document = json.loads(TABLE.model_dump_json())
    entry = changes.pop("entry", {})
    document["entries"][0].update(entry)
    path.write_text(json.dumps({**document, **changes}))
    return path


def test_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.json"
    write_table(path, TABLE)
    assert read_table(path) == TABLE
    assert [file.name for file in path.parent.iterdir()] == ["table.json"]
    assert choices_of(TABLE, allowed).find("paged_decode", ENTRY.problem.shape, 64, 8192) == PLAN


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 1}, "format"), ({"entry": {"energy": {"joules": 1.0}}}, "energy"),
        ({"objective": "beauty"}, "objective"), ({"extra": 1}, "extra"),
        ({"entry": {"rows": 0}}, "rows"), ({"entry": {"rows": "64"}}, "rows"),
        ({"entry": {"seconds": -1.0}}, "seconds"), ({"entries": [1] * 2001}, "entries"),
        ({"entry": {"plan": {"rows": 16, "shell": 1}}}, "shell"), ({"measured": {"device": ""}}, "measured"),
    ],
)  # fmt: skip
def test_refuses_what_is_no_table(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TableError, match=says):
        read_table(write(tmp_path / "table.json", **changes))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_refuses_any_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(data)
    with pytest.raises(TableError, match="is no table of kernels"):
        read_table(path)


def test_refuses_a_file_that_is_missing_a_folder_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="cannot be read: No such file"):
        read_table(tmp_path / "none.json")
    with pytest.raises(TableError, match="cannot be read: Is a directory"):
        read_table(tmp_path)
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(TableError, match="larger than the 1048576 bytes"):
        read_table(large)
    with pytest.raises(TableError, match="cannot be written"):
        write_table(large / "below.json", TABLE)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(TableError, match="cannot be written: Is a directory"):
        write_table(tmp_path / "folder.json", TABLE)
    assert not list(tmp_path.glob(".table-*")), "a write that failed leaves nothing behind"


@pytest.mark.parametrize(
    "plan",
    [
        Plan(16, 64, 4, 3, 3), Plan(16, 64, 4, 99, 4), Plan(16, 1 << 20, 4, 3, 4), Plan(0, 0, 0, 0, 0),
        Plan(16, 64, 4, 3, 0),
    ],
)  # fmt: skip
def test_refuses_a_plan_that_no_tuner_tries(tmp_path: Path, plan: Plan) -> None:
    table = read_table(write(tmp_path / "table.json", entry={"plan": plan.as_dict()}))
    with pytest.raises(TableError, match="not one of those"):
        choices_of(table, allowed)


def test_refuses_an_operator_that_is_not_tuned_and_a_plan_that_lacks_a_number(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="not one of those"):
        choices_of(read_table(write(tmp_path / "a.json", entry={"op": "rm"})), allowed)
    with pytest.raises(TableError, match="lacks a number"):
        choices_of(read_table(write(tmp_path / "b.json", entry={"plan": {"rows": 16}})), allowed)


def test_speaks_only_of_its_own_machine() -> None:
    assert mismatch(TABLE, HERE) is None
    assert mismatch(TABLE, HERE.model_copy(update={"driver": "999"})) is None
    for name, value in (("device", "NVIDIA A100"), ("architecture", "sm_80"), ("triton", "3.10.0")):
        assert f"{name} '{getattr(HERE, name)}'" in str(mismatch(TABLE, HERE.model_copy(update={name: value})))
