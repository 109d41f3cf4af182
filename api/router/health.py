"""Whether a backend is fit for requests: what probes say, and what its answers show. Knows no network and no clock."""

from __future__ import annotations

from energyopt.core.units import Seconds

LONGEST = Seconds(300.0)
"""The most an ejection lasts."""


class Health:
    """Up as the last probe found it, and out for a while after ``after`` failures in a row.

    The time out doubles with each ejection that follows before an answer went well, from ``seconds`` up.
    """

    def __init__(self, *, after: int, seconds: Seconds) -> None:
        self.up = True
        self.draining = False
        self.ejections = 0
        self._after, self._seconds = after, seconds
        self._failures = self._in_a_row = 0
        self._out_until = Seconds(float("-inf"))

    def out(self, now: Seconds) -> bool:
        """Whether it is ejected."""
        return now < self._out_until

    def fit(self, now: Seconds) -> bool:
        """Whether new requests may go there."""
        return self.up and not self.draining and not self.out(now)

    def last_resort(self) -> bool:
        """Whether it may be tried when no other is fit: a probe found it up, and it is ejected only."""
        return self.up and not self.draining

    def succeeded(self) -> None:
        """An answer went well."""
        self._failures = self._in_a_row = 0

    def failed(self, now: Seconds) -> bool:
        """An answer did not come, broke off or was a server's fault; True if that ejects the backend."""
        self._failures += 1
        if self._failures < self._after or self.out(now):
            return False
        self._failures = 0
        self._out_until = Seconds(now + min(LONGEST, self._seconds * 2.0**self._in_a_row))
        self._in_a_row = min(self._in_a_row + 1, 16)
        self.ejections += 1
        return True

    def probed(self, up: bool) -> bool:
        """A probe's finding; True if it is news."""
        news, self.up = up != self.up, up
        return news
