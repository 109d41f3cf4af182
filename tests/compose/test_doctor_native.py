"""What doctor says of the native kernels: what they reach here, or why that is unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from energyopt.compose import doctor
from kernels.cpu.compiler import CompilerMissingError
from kernels.cpu.program import NativeError
from kernels.cpu.speed import Speed


def check(monkeypatch: pytest.MonkeyPatch, rates: dict[int, float], nodes: int = 1) -> doctor.Check:
    def measure(library: object, threads: int) -> Speed:
        if threads not in rates:
            raise NativeError("no more threads")
        return Speed(threads, rates[threads], 1e11)

    library: Any = SimpleNamespace(native_variant=lambda: b"avx2")
    monkeypatch.setattr(doctor, "best_library", lambda: library)
    monkeypatch.setattr(doctor, "measure", measure)
    monkeypatch.setattr(doctor, "numa_nodes", lambda: nodes)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    return doctor._native()


def test_threads_that_are_fastest_now(monkeypatch: pytest.MonkeyPatch) -> None:
    found = check(monkeypatch, {1: 9e9, 2: 4e9})
    assert found.state == "ok"
    assert "1 thread: 9.0 GB/s, 100 Gop/s; 2 threads: 4.0 GB/s" in found.detail
    assert "one NUMA node" in found.detail
    assert "keys and values in bfloat16" in found.detail
    assert "1 of 2 threads reads fastest now" in found.detail
    assert "2 of 2 threads read fastest now" in check(monkeypatch, {1: 9e9, 2: 12e9}).detail


def test_several_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "4 NUMA nodes: bind the engine to one" in check(monkeypatch, {1: 1e9, 2: 1e9}, nodes=4).detail


def test_what_cannot_be_measured_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    found = check(monkeypatch, {1: 9e9})
    assert found.state == "limited"
    assert "no more threads" in found.detail

    def none() -> None:
        raise CompilerMissingError("No C++ compiler: install one.")

    monkeypatch.setattr(doctor, "best_library", none)
    assert "Until then torch computes" in doctor._native().detail
