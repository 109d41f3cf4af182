"""Kernel tests run in Triton's interpreter; it must be asked for before any kernel is imported."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
if os.environ.get("CI") and importlib.util.find_spec("triton") is None:
    raise pytest.UsageError("CI must have triton: without it no kernel would be tested")
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3}


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """``||out - expected|| / ||expected||``; infinite where one of them is not finite and the other is."""
    if not torch.equal(torch.isfinite(out), torch.isfinite(expected)):
        return float("inf")
    finite = torch.isfinite(expected)
    difference = (out.double() - expected.double())[finite].norm()
    return float(difference / expected.double()[finite].norm().clamp_min(1e-30))


@pytest.fixture
def assert_near() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Shapes and types equal, and the relative error within what the type allows."""

    def check(out: torch.Tensor, expected: torch.Tensor) -> None:
        assert out.shape == expected.shape
        assert out.dtype == expected.dtype
        assert relative_error(out, expected) < LIMITS[out.dtype]

    return check


@pytest.fixture
def draw() -> Callable[..., torch.Tensor]:
    """Normal random tensors that repeat from run to run."""
    generator = torch.Generator().manual_seed(7)

    def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    return tensor


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh tensors start as NaN (or the largest integer): a cell that a kernel forgets shows."""
    real_empty, real_like = torch.empty, torch.empty_like

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype.is_floating_point:
            return tensor.fill_(float("nan"))
        return tensor if tensor.dtype == torch.bool else tensor.fill_(torch.iinfo(tensor.dtype).max)

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(real_empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(real_like(*a, **k)))


@pytest.fixture(scope="session", autouse=True)
def language_patched_once_a_launch() -> Iterator[None]:
    """Triton 3.9 exchanges its language for the interpreted one anew at every call of a device function, which takes
    half of these tests' time. What a launch has exchanged already is left as it is until the launch ends."""
    if importlib.util.find_spec("triton") is None:
        yield
        return
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    patch, launch, language = interpreter._patch_lang, interpreter.GridExecutor.__call__, interpreter.tl
    done: set[frozenset[int]] = set()

    def patch_once(function: Any) -> Any:
        seen = frozenset(id(v) for v in function.__globals__.values() if v is language or v is language.core)
        if seen in done:
            return interpreter._LangPatchScope()
        done.add(seen)
        return patch(function)

    def begin(executor: Any, *arguments: Any, **options: Any) -> Any:
        done.clear()
        return launch(executor, *arguments, **options)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(interpreter, "_patch_lang", patch_once)
        monkeypatch.setattr(interpreter.GridExecutor, "__call__", begin)
        yield


@pytest.fixture(autouse=True)
def interpreted() -> None:
    """Fail plainly where something imported the kernels before this file could ask for the interpreter."""
    if "triton" in sys.modules:
        assert sys.modules["triton"].knobs.runtime.interpret, "TRITON_INTERPRET must be set before triton is imported"
