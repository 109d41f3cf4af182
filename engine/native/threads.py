"""How many threads a step takes: found by trying, since what is best changes with what else the machine does.

Two threads on two cores lose to one as soon as another process runs: each step waits for the thread whose core was
taken. Measured with one other busy process at batch 1: 254 tokens/s with one thread, 165 with two (268 and 354 alone).
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST, LONGEST = 8, 1024
"""Steps between trials: few at first and after a change, twice as many each time that nothing was better."""
ROUNDS = 4
"""Steps that each side of a trial takes, in turn."""
MARGIN = 0.9
"""Of the present time a step must take with another count to be taken: noise alone changes nothing."""
SURPRISE = 1.5
"""Times the usual duration of a step of as many rows: something happened, so a trial is due."""


@dataclass(slots=True)
class _Trial:
    """Steps of ``rows`` rows, by turns with the present number of threads and with ``other``."""

    rows: int
    other: int
    seconds: dict[int, list[float]] = field(default_factory=dict)


class ThreadPolicy:
    """Asks before each step, learns after it; knows neither clock nor threads. Counts are ``most`` and its halves."""

    def __init__(self, most: int) -> None:
        self._counts = sorted({max(1, most >> shift) for shift in range(most.bit_length())})
        self._at = len(self._counts) - 1
        self._interval = self._left = FIRST
        self._down = True
        self._trial: _Trial | None = None
        self._usual: dict[int, float] = {}

    @property
    def current(self) -> int:
        """The number of threads that is best as far as is known."""
        return self._counts[self._at]

    def choose(self, rows: int) -> int:
        """Threads for the next step, of ``rows`` rows."""
        if self._trial is not None and self._trial.rows != rows:
            self._trial = None  # steps of different sizes do not compare
        if self._trial is None:
            self._left -= 1
            if self._left > 0 or len(self._counts) == 1:
                return self.current
            self._trial = _Trial(rows, self._neighbour())
        seen = self._trial.seconds
        mine, theirs = (len(seen.get(count, ())) for count in (self.current, self._trial.other))
        return self.current if mine <= theirs else self._trial.other

    def observe(self, rows: int, threads: int, seconds: float) -> None:
        """What a step took."""
        if self._trial is None:
            self._watch(rows, seconds)
            return
        if self._trial.rows == rows:
            self._trial.seconds.setdefault(threads, []).append(seconds)
            if all(len(self._trial.seconds.get(n, ())) >= ROUNDS for n in (self.current, self._trial.other)):
                self._decide(self._trial)

    def _decide(self, trial: _Trial) -> None:
        mine, theirs = (sum(trial.seconds[count]) for count in (self.current, trial.other))
        self._trial = None
        if theirs < MARGIN * mine:
            self._at = self._counts.index(trial.other)
            self._interval = FIRST
            self._usual.clear()
        else:
            self._down = not self._down
            self._interval = min(2 * self._interval, LONGEST)
        self._left = self._interval

    def _neighbour(self) -> int:
        """The next count down or up, by turns; at an end there is one way only."""
        step = -1 if self._down else 1
        at = self._at + step if 0 <= self._at + step < len(self._counts) else self._at - step
        return self._counts[at]

    def _watch(self, rows: int, seconds: float) -> None:
        usual = self._usual.get(rows)
        if usual is not None and seconds > SURPRISE * usual:
            self._left = min(self._left, FIRST)
            self._interval = FIRST
        if len(self._usual) > LONGEST:
            self._usual.clear()  # sizes of prompts are endless
        self._usual[rows] = seconds if usual is None else 0.9 * usual + 0.1 * seconds
