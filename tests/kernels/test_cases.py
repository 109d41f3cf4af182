"""Every named use of an operator gives what its twin gives, so that the benchmark and the compiler speak of correct
launches."""

from __future__ import annotations

import dataclasses

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.cases import attention, dense
from kernels.cases.work import Case, Maker, Work, widened
from kernels.platform import INTERPRETER

ALL = (*attention.CASES, *dense.CASES)
WITH_FP8 = dataclasses.replace(INTERPRETER, fp8=torch.float8_e4m3fn)


def build(case: Case, dtype: torch.dtype) -> Work:
    maker = Maker(torch.device("cpu"), dtype, WITH_FP8, torch.Generator().manual_seed(5))
    return case.build(maker, True)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_equals_its_twin(case: Case) -> None:
    dtype = torch.float16 if case.dtypes[0].itemsize == 2 else torch.float32
    work = build(case, dtype)
    expected = work.twin(*[widened(argument) for argument in work.arguments])
    out = work.op(*work.arguments, arch=WITH_FP8)
    assert len(out) == len(expected)
    for ours, twin in zip(out, expected, strict=True):
        assert ours.shape == twin.shape
        if twin.numel():
            error = (ours.double() - twin.double()).norm() / twin.double().norm()
            assert error < 2e-3
    assert work.bytes > 0


def test_names_are_unique() -> None:
    assert len({case.name for case in ALL}) == len(ALL)
