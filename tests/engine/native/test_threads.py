"""The thread policy against machines that are scripted: quiet, busy, and changing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.native.threads import FIRST, LONGEST, ROUNDS, ThreadPolicy

Machine = Callable[[int], float]
"""Seconds of a step by its number of threads."""


def quiet(threads: int) -> float:
    return float(threads**-0.8)


def busy(threads: int) -> float:
    return 1.0 if threads == 1 else 1.6


def drive(policy: ThreadPolicy, machine: Machine, steps: int, rows: int = 1) -> list[int]:
    used = []
    for _ in range(steps):
        threads = policy.choose(rows)
        used.append(threads)
        policy.observe(rows, threads, machine(threads))
    return used


def test_a_quiet_machine_keeps_every_core_and_trials_become_rare() -> None:
    policy = ThreadPolicy(8)
    used = drive(policy, quiet, 4000)
    assert policy.current == 8
    assert used[0] == 8
    assert used.count(8) > 0.97 * len(used)
    assert set(used) == {4, 8}


def test_a_busy_machine_is_left_to_one_thread_soon() -> None:
    policy = ThreadPolicy(2)
    used = drive(policy, busy, 200)
    assert policy.current == 1
    assert used[FIRST + 2 * ROUNDS :].count(2) <= 20


def test_it_comes_back_when_the_machine_is_quiet_again() -> None:
    policy = ThreadPolicy(2)
    drive(policy, busy, 300)
    assert policy.current == 1
    drive(policy, quiet, 2 * LONGEST)
    assert policy.current == 2


def test_a_sudden_slowness_brings_a_trial_forward() -> None:
    policy = ThreadPolicy(2)
    drive(policy, quiet, 5 * LONGEST)
    used = drive(policy, busy, 2 * FIRST + 4 * ROUNDS)
    assert policy.current == 1, used


def test_noise_within_the_margin_changes_nothing() -> None:
    policy = ThreadPolicy(4)
    drive(policy, lambda threads: 1.0 if threads == 4 else 0.95, 3000)
    assert policy.current == 4


def test_steps_of_different_sizes_are_not_compared() -> None:
    policy = ThreadPolicy(2)
    for step in range(500):
        rows = step % 2 + 1
        threads = policy.choose(rows)
        policy.observe(rows, threads, 100.0 * rows if threads == 2 else 0.1)
    assert policy.current == 2, "no two neighbours were alike"


def test_many_cores_are_halved_down_to_one() -> None:
    policy = ThreadPolicy(6)
    drive(policy, lambda threads: float(threads), 2000)
    assert policy.current == 1


@pytest.mark.parametrize("most", [1, 2, 3, 16])
def test_counts_stay_in_range(most: int) -> None:
    policy = ThreadPolicy(most)
    assert set(drive(policy, busy, 1000)) <= {max(1, most >> shift) for shift in range(5)}


@given(
    most=st.integers(1, 12),
    steps=st.lists(st.tuples(st.integers(1, 3), st.floats(1e-6, 1e3)), max_size=300),
)
def test_whatever_is_observed_a_count_is_given(most: int, steps: list[tuple[int, float]]) -> None:
    policy = ThreadPolicy(most)
    for rows, seconds in steps:
        threads = policy.choose(rows)
        assert 1 <= threads <= most
        policy.observe(rows, threads, seconds)
