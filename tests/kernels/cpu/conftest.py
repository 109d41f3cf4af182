"""The native kernels in every variant that this CPU runs; the fastest and the portable one are compiled if need be."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import pytest
import torch

from kernels.cpu.blocks import Blocks
from kernels.cpu.compiler import CompilerMissingError
from kernels.cpu.instructions import runnable
from kernels.cpu.library import Shape, library_for
from kernels.cpu.program import Program

TESTED = (runnable()[0].name, "portable")


@dataclass
class Multiplier:
    """One matrix in a library."""

    library: ctypes.CDLL
    threads: int = 1

    def __call__(self, weight: Blocks, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        shape = Shape(1, weight.width, 32, 2, 1, 16, 32, 1e-5)
        program = Program(self.library, shape, [1.0] * 8, self.threads)
        program.matrix("out", 0, weight, bias)
        padded = torch.nn.functional.pad(x, (0, weight.width - x.shape[1]))
        result = torch.from_numpy(program.multiply("out", 0, padded.numpy(), weight.rows, self.threads).copy())
        program.close()
        return result


@pytest.fixture(scope="session", params=TESTED)
def native(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The library of one variant. Only the absence of a compiler is a reason to skip: one that fails is a fault."""
    variant = next(one for one in runnable() if one.name == request.param)
    try:
        return library_for(variant)
    except CompilerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def multiplier(native: ctypes.CDLL) -> Multiplier:
    return Multiplier(native)
