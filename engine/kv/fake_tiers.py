"""Scriptable lower tiers for tests of whatever stands above them: slow, failing, forgetful, and late with answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat

from .null_tiers import NullTiers
from .ports import NOTHING, Found, TierEvents, Transfer

Content = Sequence[int | None]


_RUBBISH = (-1,) * 64


class FakeTiers(NullTiers):
    """Tiers that hold what ``read`` gives and give it back through ``write``.

    Content is moved when a copy *ends*, ``delays`` polls after it began: whoever reuses a block before that is found
    out by what is in it. ``failures`` says of each load in turn whether it fails, after having written rubbish to some
    of its blocks; ``gone`` whether its blocks vanished since they were found; ``late`` of each question whether the
    answer is to be asked for again; ``dear`` of each
    choice whether the load costs more than computing.
    """

    def __init__(
        self,
        capacities: Mapping[str, int | None],
        *,
        read: Callable[[int], Content],
        write: Callable[[int, Content], None],
        delays: Iterator[int] | None = None,
        failures: Iterator[bool] | None = None,
        gone: Iterator[bool] | None = None,
        late: Iterator[bool] | None = None,
        dear: Iterator[bool] | None = None,
    ) -> None:
        super().__init__(capacities)
        self.closed = False
        self.waited = 0.0
        self._read, self._write = read, write
        self._delays = delays if delays is not None else repeat(0)
        self._failures = failures if failures is not None else repeat(False)
        self._gone = gone if gone is not None else repeat(False)
        self._late = late if late is not None else repeat(False)
        self._dear = dear if dear is not None else repeat(False)
        self.weighed: list[tuple[tuple[str, ...], int]] = []
        self._content: dict[bytes, Content] = {}
        self._due: dict[int, tuple[int, bool, bool, Sequence[Transfer]]] = {}
        self._polls = 0

    @property
    def running(self) -> int:
        """Copies that have not ended."""
        return len(self._due)

    def find(self, keys: Sequence[bytes], *, weigh: bool) -> Found:
        return Found(later=True) if next(self._late, False) else super().find(keys, weigh=weigh)

    def locate(self, keys: Sequence[bytes]) -> Found:
        return Found(later=True) if next(self._late, False) else super().locate(keys)

    def worth(self, tiers: Sequence[str], tokens: int) -> bool:
        self.weighed.append((tuple(tiers), tokens))
        return not next(self._dear, False)

    def load(self, transfers: Sequence[Transfer]) -> int | None:
        if next(self._gone, False) or not all(transfer.key in self._content for transfer in transfers):
            return None
        return self._begin(super().load(transfers), transfers, loads=True, fails=next(self._failures, False))

    def store(self, transfers: Sequence[Transfer]) -> int | None:
        return self._begin(super().store(transfers), transfers, loads=False, fails=False)

    def poll(self) -> TierEvents:
        super().poll()
        self._polls += 1
        ended = [ticket for ticket, (due, *_) in self._due.items() if due <= self._polls]
        if not ended:
            return NOTHING
        loaded: list[int] = []
        failed: list[int] = []
        stored: list[int] = []
        for ticket in ended:
            _, loads, fails, transfers = self._due.pop(ticket)
            self._move(loads, fails, transfers)
            (stored if not loads else failed if fails else loaded).append(ticket)
        return TierEvents(tuple(loaded), tuple(failed), tuple(stored))

    def wait(self, seconds: float) -> None:
        self.waited += seconds

    def close(self) -> None:
        self.closed = True

    def _first_with(self, key: bytes) -> str:
        """A block is there only once its copy has ended."""
        return super()._first_with(key) if key in self._content else ""

    def _begin(self, ticket: int | None, transfers: Sequence[Transfer], *, loads: bool, fails: bool) -> int | None:
        if ticket is not None:
            self._due[ticket] = (self._polls + 1 + next(self._delays, 0), loads, fails, tuple(transfers))
        return ticket

    def _move(self, loads: bool, fails: bool, transfers: Sequence[Transfer]) -> None:
        for number, transfer in enumerate(transfers):
            if not loads:
                self._content[transfer.key] = self._read(transfer.slot)
            elif fails and number == 0:
                self._write(transfer.slot, _RUBBISH)
            else:
                self._write(transfer.slot, self._content[transfer.key])
