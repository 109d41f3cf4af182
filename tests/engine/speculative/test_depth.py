"""How deep to guess: the depth with the least joules per token, none where guessing costs energy."""

from __future__ import annotations

import random

import pytest

from energyopt.core.results import EnergyTotal, Source
from energyopt.core.units import Joules, Seconds
from engine.speculative.depth import AdaptiveDepth, EnergyBetween


class Machine:
    """A step takes ``seconds`` and ``joules`` by its rows; guesses come true with ``chance``."""

    def __init__(self, seconds: tuple[float, float], joules: tuple[float, float] | None, chance: float) -> None:
        self.seconds, self.joules, self.chance = seconds, joules, chance
        self.now, self.spent, self.tokens = 0.0, 0.0, 0
        self.windows: dict[tuple[float, float], float] = {}
        self.random = random.Random(1)

    def energy(self, start: float, end: float) -> EnergyTotal | None:
        if end > self.now - 0.05:  # the sensors are late
            return None
        joules = Joules(self.windows[start, end])
        return EnergyTotal(joules=joules, error=Joules(0.0), sources=(Source.COUNTER,))

    def run(self, policy: AdaptiveDepth, requests: int, steps: int) -> list[int]:
        """The depth of each step."""
        depths = []
        for _ in range(steps):
            depth = policy.depth(requests)
            rows = requests * (1 + depth)
            start, self.now = self.now, self.now + self.seconds[0] + self.seconds[1] * rows
            if self.joules is not None:
                self.windows[start, self.now] = self.joules[0] + self.joules[1] * rows
                self.spent += self.windows[start, self.now]
            for _ in range(requests if depth else 0):
                accepted = 0
                while accepted < depth and self.random.random() < self.chance:
                    accepted += 1
                policy.verified(depth, accepted)
                self.tokens += accepted
            self.tokens += requests
            policy.stepped(rows, Seconds(start), Seconds(self.now))
            depths.append(depth)
        return depths


def policy_for(machine: Machine, deepest: int = 4) -> AdaptiveDepth:
    energy: EnergyBetween | None = None if machine.joules is None else machine.energy
    return AdaptiveDepth(deepest, energy)


def usual(depths: list[int]) -> int:
    late = depths[len(depths) // 2 :]
    return max(set(late), key=late.count)


@pytest.mark.parametrize(
    ("seconds", "joules", "chance", "want"),
    [
        ((0.01, 0.0001), None, 0.9, 4),
        ((0.01, 0.0001), None, 0.01, 0),
        ((0.001, 0.01), None, 0.5, 0),
        ((0.01, 0.0001), (1.0, 0.01), 0.9, 4),
        ((0.01, 0.0001), (0.01, 1.0), 0.6, 0),  # faster with guesses, and dearer
        ((0.0, 0.01), (1.0, 0.001), 0.9, 4),  # slower with guesses, and cheaper
    ],
)
def test_the_cheapest_depth_is_found(
    seconds: tuple[float, float], joules: tuple[float, float] | None, chance: float, want: int
) -> None:
    machine = Machine(seconds, joules, chance)
    policy = policy_for(machine)
    depths = machine.run(policy, 2, 800)
    assert usual(depths) == want
    assert policy.by_joules == (joules is not None)
    if want == 0:
        assert sum(depth > 0 for depth in depths[100:]) <= 20, "off, but for a probe now and then"


def test_it_turns_itself_off_when_guessing_stops_to_pay_and_on_again() -> None:
    machine = Machine((0.01, 0.0), (0.5, 0.2), 0.95)
    policy = policy_for(machine)
    assert usual(machine.run(policy, 1, 400)) == 4
    machine.chance = 0.05
    assert usual(machine.run(policy, 1, 800)) == 0
    machine.chance = 0.95
    assert usual(machine.run(policy, 1, 8000)) == 4


def test_it_never_costs_more_than_a_few_percent_of_not_guessing() -> None:
    for chance in (0.0, 0.2, 0.5, 0.8, 1.0):
        machine = Machine((0.01, 0.0), (0.4, 0.3), chance)
        machine.run(policy_for(machine), 2, 3000)
        plain = (0.4 + 0.3 * 2) / 2
        assert machine.spent / machine.tokens < 1.05 * plain


def test_a_gap_of_the_sensors_is_given_up_and_time_decides_meanwhile() -> None:
    policy = AdaptiveDepth(2, lambda start, end: None)
    for step in range(400):
        policy.stepped(2 + step % 3, Seconds(step * 1.0), Seconds(step * 1.0 + 0.5))
    assert not policy.by_joules
    assert policy.best(2) is not None
    assert AdaptiveDepth(2).best(2) is None
