"""The progress bar of a study: which trial, which stage, the best so far, the time left."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from energyopt.core.units import format_duration
from tuner.progress import StudyProgress

STAGES = ("launching", "warming", "measuring")
"""A trial's stages in order; the bar gives each the same share of a trial."""


class StudyBar:
    """Draws ``StudyProgress`` on a terminal and prints a line for each trial that starts and ends.

    Without a terminal only the lines are printed. ``unit`` is that of the best value.
    """

    def __init__(self, console: Console, unit: str) -> None:
        self._console, self._unit = console, unit
        self._progress = Progress(
            TextColumn("{task.fields[what]}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[best]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("study", total=1.0, what="starting", best="", left="")

    def __enter__(self) -> StudyBar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()

    def update(self, state: StudyProgress) -> None:
        """Show where the study stands."""
        what = "between trials" if state.trial is None else f"trial {state.trial}, {state.stage}"
        self._progress.update(
            self._task,
            completed=share_done(state),
            what=f"{what} ({state.done} of {state.total} done)",
            best="" if state.best is None else f"best {state.best:.3g} {self._unit}",
            left="" if state.eta is None else f"{format_duration(state.eta)} left",
        )
        if state.message:
            self._console.print(state.message, markup=False, highlight=False, soft_wrap=True)


def share_done(state: StudyProgress) -> float:
    """The share of the study's runs that is behind it, between 0 and 1."""
    stage = STAGES.index(state.stage) if state.stage in STAGES else 0
    running = 0.0 if state.trial is None else (stage + state.fraction) / len(STAGES)
    return min(1.0, (state.done + min(running, 1.0)) / max(1, state.total))
