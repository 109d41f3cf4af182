"""The port of a search: ask for a point, be told how it did.

A searcher keeps nothing of its own that matters: told the same history it asks the same questions, so a resumed study
goes on as if it had never stopped.
"""

from __future__ import annotations

from typing import Protocol

from tuner.objective import Score
from tuner.space import Params


class Searcher(Protocol):
    """Proposes valid points of one space, each once."""

    @property
    def name(self) -> str:
        """Which method runs, for the report: "random", "tpe", "gp"."""
        ...

    def ask(self) -> Params | None:
        """The next point; None when every valid point was asked or told. The baseline is not asked for."""
        ...

    def expect(self, params: Params) -> None:
        """A point is measured now though it was not asked for here: by somebody's wish, or for an earlier leader.

        Raises ConfigError if ``params`` is no point of the space.
        """
        ...

    def tell(self, params: Params, score: Score) -> None:
        """How a point did, asked for or not, in the order of the trials; a point may be told more than once.

        Raises ConfigError, and learns nothing, if ``params`` is no point of the space.
        """
        ...
