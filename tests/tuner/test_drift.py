"""Drift is believed only where chance hardly explains it, and then taken out exactly."""

from __future__ import annotations

import math
import random

import pytest

from tuner.drift import LEAST, NO_DRIFT, drift_of


def test_a_steady_decline_is_found_and_taken_out() -> None:
    found = drift_of([(number, 5.0 * math.exp(-0.01 * number)) for number in (0, 13, 26, 39)])
    assert found.believed
    assert found.rate == pytest.approx(-0.01)
    assert 5.0 * math.exp(-0.26) / found.factor(26) == pytest.approx(5.0)


def test_noise_is_hardly_ever_taken_for_drift() -> None:
    rng = random.Random(0)
    believed = sum(
        drift_of([(number, math.exp(rng.gauss(0, 0.04))) for number in (0, 13, 26, 39)]).believed for _ in range(400)
    )
    assert 5 <= believed <= 40  # 20 expected of a test at 5%


def test_a_constant_machine_has_no_drift_and_two_points_say_nothing() -> None:
    assert not drift_of([(0, 2.0), (10, 2.0), (20, 2.0)]).believed
    few = drift_of([(0, 2.0), (10, 1.0)])
    assert few.runs < LEAST
    assert few.factor(10) == NO_DRIFT.factor(10) == 1.0
    assert not drift_of([(3, 1.0), (3, 1.1), (3, 1.2)]).believed
