"""Threads are calmed by default and never against the user's own choice."""

import pytest

from energyopt.compose.threads import CHOICES, SPINS, calm_threads


def test_spinning_is_bounded_by_default() -> None:
    environment: dict[str, str] = {}
    calm_threads(environment)
    assert environment == {"GOMP_SPINCOUNT": SPINS}


@pytest.mark.parametrize("name", CHOICES)
def test_the_users_choice_stays(name: str) -> None:
    environment = {name: "INFINITE"}
    calm_threads(environment)
    assert environment == {name: "INFINITE"}
