"""How much of the optimum a study finds on the synthetic surface, by method, over twenty seeds; and what it costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.study import Sampler
from energyopt.store.memory import MemoryStudyStore
from tests.bench.figures import Report
from tuner.contest import Outcome, feasible_share, optimum, run_contest, synthetic_search_space
from tuner.objective import Objective
from tuner.search.gp import GpSearcher
from tuner.search.optuna import OptunaSearcher
from tuner.search.ports import Searcher
from tuner.synthetic import SYNTHETIC_SLOS

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]
SEEDS = range(20)
AT = (10, 20, 40)
METHODS: Sequence[tuple[Sampler, bool]] = (
    ("random", False),
    ("sobol", False),
    ("tpe", False),
    ("gp", False),
    ("random", True),
    ("tpe", True),
    ("gp", True),
)


def _show(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a bench exists to print its figures


def _contests(sampler: Sampler, warm: bool) -> list[Outcome]:
    return [
        run_contest(MemoryStudyStore(FakeClock()), sampler, seed, trials=AT[-1], at=AT, warm=warm) for seed in SEEDS
    ]


def _low(values: Sequence[float]) -> float:
    """The 10th percentile, nearest rank."""
    return sorted(values)[len(values) // 10]


def test_a_warm_gaussian_process_finds_the_optimum_and_never_a_false_winner(figure: Report) -> None:
    _show(f"\nsynthetic surface: {feasible_share():.1%} feasible, optimum {optimum():.3f} tokens/J, {len(SEEDS)} seeds")
    _show(
        "method          " + "".join(f"  n={n}: median (p10)" for n in AT) + "   winner  falsely feasible  none  CPU s"
    )
    results: dict[tuple[str, bool], list[Outcome]] = {}
    for sampler, warm in METHODS:
        begun = time.process_time()
        found = results[sampler, warm] = _contests(sampler, warm)
        cpu = (time.process_time() - begun) / len(SEEDS)
        shares = [[one.fractions[place] for one in found] for place in range(len(AT))]
        false = sum(one.excess is not None and one.excess > 0 for one in found)
        none = sum(one.winner is None for one in found)
        cells = "".join(f"  {median(share):8.3f} ({_low(share):.3f})  " for share in shares)
        winner = median(one.winner or 0.0 for one in found)
        _show(f"{sampler + (' + sim' if warm else ''):<16}{cells} {winner:7.3f} {false:12d} {none:9d} {cpu:7.2f}")
    warm_gp = results["gp", True]
    for place, goal in ((1, 0.9), (2, 0.95)):
        share = median(one.fractions[place] for one in warm_gp)
        figure(f"tuner: share of the optimum after {AT[place]} trials (median)", share, "", f"at least {goal}")
    assert median(one.fractions[1] for one in warm_gp) >= 0.90
    assert median(one.fractions[2] for one in warm_gp) >= 0.95
    everything = [one for found in results.values() for one in found]
    assert sum((one.excess or 0.0) > 0 for one in everything) < 0.02 * len(everything)


@pytest.mark.parametrize(("method", "limit"), [("gp", 3.0), ("tpe", 0.05)])
def test_a_question_costs_little(method: str, limit: float) -> None:
    space, objective = synthetic_search_space(), Objective("tokens_per_joule", SYNTHETIC_SLOS)
    searcher: Searcher = GpSearcher(space, 0) if method == "gp" else OptunaSearcher(space, 0, "tpe", startup=8)
    costs = []
    points = space.plan.points[:: len(space.plan.points) // 60][:60]
    for number, params in enumerate(points):
        begun = time.process_time()
        searcher.ask()
        costs.append(time.process_time() - begun)
        score = objective.score(None)
        kept = dict.fromkeys(score.constraints, (number % 7 - 3) / 8)
        searcher.tell(params, type(score)(number % 11 / 10, kept if number % 5 else dict(score.constraints)))
    _show(f"{method}: CPU of a question at 60 trials: median {median(costs) * 1e3:.0f} ms, worst {max(costs):.2f} s")
    assert median(costs) < limit


def test_four_workers_lose_little_against_one_at_equal_trials() -> None:
    """Each of four is chosen while three others are measured; the search expects of those what it believes of them."""
    _show(f"\nwarm GP by trials under way at once, {len(SEEDS)} seeds: share of the optimum, median (p10)")
    found: dict[int, list[list[float]]] = {}
    for width in (1, 2, 4):
        outcomes = [
            run_contest(MemoryStudyStore(FakeClock()), "gp", seed, trials=AT[-1], at=AT, width=width) for seed in SEEDS
        ]
        found[width] = [[one.fractions[place] for one in outcomes] for place in range(len(AT))]
        cells = (f"n={n}: {median(share):.3f} ({_low(share):.3f})" for n, share in zip(AT, found[width], strict=True))
        _show(f"width {width}: {'  '.join(cells)}")
        assert sum((one.excess or 0.0) > 0 for one in outcomes) <= 0.05 * len(outcomes)
    for place in (1, 2):
        assert median(found[4][place]) >= median(found[1][place]) - 0.05
