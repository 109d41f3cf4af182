"""Every case compiles for every architecture within its budget of registers, spills and shared memory.

The budget is what the pinned Triton gave when it was written, so a difference is a change of the code or of the
compiler, and shows as a number. After an intended one: ``python tests/kernels/compile_matrix.py --write`` with the
architectures named below.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="the kernels need triton")

HERE = Path(__file__).parent
ARCHS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")
HOT = (
    "paged_decode",
    "mla_",
    "paged_prefill",
    "quant_",
    "rms_norm",
    "add_rms_norm",
    "swiglu",
    "rope_",
    "experts",
)
Needs = dict[str, list[int]]


def budget() -> dict[str, Needs]:
    loaded: dict[str, Needs] = json.loads((HERE / "budget.json").read_text(encoding="utf-8"))
    return loaded


def compile_for(arch: str) -> Needs:
    """A process of its own: this one interprets. Triton's cache, keyed by source, makes a second run quick."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(HERE.parent.parent)
    done = subprocess.run(
        [sys.executable, str(HERE / "compile_matrix.py"), arch],
        env=environment, check=False, capture_output=True, text=True, timeout=590,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    needs: Needs = json.loads(done.stdout)
    return needs


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not triton.__version__.startswith("3.9."), reason="the budget is that of Triton 3.9")
@pytest.mark.parametrize("arch", ARCHS)
def test_every_case_compiles_within_its_budget(arch: str) -> None:
    needs, allowed = compile_for(arch), budget()[arch]
    assert needs.keys() == allowed.keys()
    changed = {key: (allowed[key], needs[key]) for key in needs if needs[key] != allowed[key]}
    assert not changed, f"kernel: (budget, now), each [registers, spills, shared memory]: {changed}"


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_hot_kernels_do_not_spill(arch: str) -> None:
    hot = {key: needs for key, needs in budget()[arch].items() if key.startswith(HOT)}
    assert len(hot) > 25
    assert {key: needs for key, needs in hot.items() if needs[1]} == {}


def test_budget_covers_every_architecture() -> None:
    assert set(budget()) == set(ARCHS)
