"""The progress bar of a study: which trial, which stage, the best so far, the time left."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from energyopt.core.units import format_si
from tuner.loop import StudyProgress


class StudyBar:
    """Draws ``StudyProgress`` on a terminal; elsewhere it prints one line for each trial that ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.fields[what]}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[best]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("study", total=1.0, what="starting", best="", left="")
        self._said: str | None = None

    def __enter__(self) -> StudyBar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()

    def update(self, state: StudyProgress) -> None:
        """Show where the study stands."""
        self._progress.update(
            self._task,
            completed=state.done,
            what=state.headline,
            best="" if state.best is None else f"best {state.best:.3g} {state.unit}",
            left="" if state.eta is None else f"{format_si(max(0.0, state.eta), 's', 2)} left",
        )
        if state.message is not None and state.message != self._said:
            self._said = state.message
            self._console.print(state.message, markup=False, highlight=False)
