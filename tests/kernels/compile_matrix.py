"""Compile every case for one architecture, without a GPU, and print what each kernel needs.

    python tests/kernels/compile_matrix.py sm_90            prints {"case/type/kernel": [registers, spills, shared]}
    python tests/kernels/compile_matrix.py --write ARCH...  writes those architectures' part of budget.json

A script of its own because Triton decides at import whether it interprets or compiles, and the other kernel tests
interpret.
"""

# ruff: noqa: E402 (Triton reads its settings when it is imported)
from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "energyopt" / "triton"
os.environ["TRITON_CACHE_DIR"] = str(CACHE)
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
os.environ.pop("TRITON_INTERPRET", None)

import torch
from triton.runtime.jit import JITFunction

from kernels import offline
from kernels.cases import attention, dense
from kernels.cases.work import Maker
from kernels.platform import arch_named

BUDGET = Path(__file__).parent / "budget.json"


def kernels() -> list[Any]:
    """Every jit function of the rooms' modules that a launcher may start."""
    modules = [module for name, module in sys.modules.items() if name.startswith("kernels.")]
    found = {id(v): v for module in modules for v in vars(module).values() if isinstance(v, JITFunction)}
    return [function for function in found.values() if function.__name__.endswith("_kernel")]


def measure(name: str) -> dict[str, list[int]]:
    """What each kernel of each case takes on the architecture called ``name``."""
    arch = arch_named(name)
    needs: dict[str, list[int]] = {}
    seen: set[int] = set()
    with offline.offline(arch) as driver:
        for case in (*attention.CASES, *dense.CASES):
            if case.needs_fp8 and arch.fp8 is None:
                continue
            for dtype in case.dtypes:
                work = case.build(Maker(torch.device("meta"), dtype, arch), False)
                work.op(*work.arguments, arch=arch)
                for compiled in offline.compiled_since(kernels(), driver.device, seen):
                    took = offline.resources(compiled)
                    key = f"{case.name}/{str(dtype).removeprefix('torch.')}/{took.kernel}"
                    while key in needs:
                        key += "+"
                    needs[key] = [took.registers, took.spills, took.shared]
    return needs


def laid_out(budget: dict[str, dict[str, list[int]]]) -> str:
    """JSON with a line a kernel, so that a diff reads."""
    parts = [
        f"{json.dumps(arch)}: {{\n" + ",\n".join(f" {json.dumps(key)}: {needs[key]}" for key in sorted(needs)) + "\n}"
        for arch, needs in sorted(budget.items())
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("archs", nargs="+")
    parser.add_argument("--write", action="store_true", help="renew these architectures' part of budget.json")
    options = parser.parse_args()
    measured = {name: measure(name) for name in options.archs}
    if options.write:
        budget = json.loads(BUDGET.read_text(encoding="utf-8")) if BUDGET.exists() else {}
        BUDGET.write_text(laid_out({**budget, **measured}), encoding="utf-8")
    else:
        sys.stdout.write(json.dumps(measured[options.archs[0]], sort_keys=True))


if __name__ == "__main__":
    main()
