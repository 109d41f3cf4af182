"""Collects the figures that benches report, and shows them as one table at the end of ``make bench``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.figures import Figure, Report, facts_of, machine, read, table, taken, write

ROOT = Path(__file__).parents[2]
COMMITTED, FRESH = ROOT / "docs/measurements/bench.json", ROOT / "build/bench.json"
FIGURES: pytest.StashKey[list[Figure]] = pytest.StashKey()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Report:
    """``figure(name, value, unit, goal)``: one line of the table."""
    found = request.config.stash.setdefault(FIGURES, [])

    def report(name: str, value: float, unit: str = "", goal: str = "") -> None:
        found.append(taken(name, value, unit, goal))

    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash.get(FIGURES, [])
    if not figures:
        return
    facts = machine()
    terminalreporter.section("figures")
    terminalreporter.line("  ".join(f"{name}: {fact}" for name, fact in facts.items()))
    if (then := facts_of(COMMITTED)) not in ({}, facts):
        terminalreporter.line("committed were those of  " + "  ".join(f"{name}: {fact}" for name, fact in then.items()))
    for line in table(figures, read(COMMITTED)):
        terminalreporter.line(line)
    earlier = read(FRESH) if facts_of(FRESH) == facts else {}  # benches may be run one by one, of one machine and day
    write(FRESH, (earlier | {figure.name: figure for figure in figures}).values(), facts)
    terminalreporter.line(f"kept in {FRESH}; to compare the next run with it: cp {FRESH} {COMMITTED}")
