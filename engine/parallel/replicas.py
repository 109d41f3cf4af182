"""Data parallel attention: replicas with schedulers and caches of their own, whose steps the ranks compute together.

The experts of a layer are spread over all replicas, so no replica can step alone: whoever has nothing to compute takes
part with no rows.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from ..batch import Batch, CacheShape, StepResult

_TOGETHER = 0.002
"""Seconds that a step waits for a replica that took part in the last one: its scheduler is between two steps."""


class Computes(Protocol):
    """Runs one step of all replicas; ``ParallelRunner`` is one."""

    @property
    def cache(self) -> CacheShape: ...

    @property
    def devices(self) -> tuple[str, ...]: ...

    @property
    def replicas(self) -> int: ...

    @property
    def max_scored_tokens(self) -> int: ...

    def run_all(self, batches: Sequence[Batch]) -> list[StepResult]:
        """A result for each replica's batch; an empty batch gets an empty one."""
        ...

    def close(self) -> None: ...


class Conductor:
    """Brings the replicas' batches together: one of the waiting threads computes for all that have come.

    An error of a step is every replica's error. The runner is closed when the last replica is.
    """

    def __init__(self, runner: Computes) -> None:
        self.runner = runner
        self.replicas = [Replica(self, number) for number in range(runner.replicas)]
        self._changed = threading.Condition()
        self._pending: dict[int, Batch] = {}
        self._results: dict[int, StepResult | BaseException] = {}
        self._last: set[int] = set()
        self._leading = False
        self._open = set(range(runner.replicas))

    def run(self, number: int, batch: Batch) -> StepResult:
        """This replica's result of the next step of all."""
        with self._changed:
            self._pending[number] = batch
            self._changed.notify_all()
            self._changed.wait_for(lambda: number in self._results or not self._leading)
            leads = number not in self._results
            self._leading = self._leading or leads
        if leads:
            self._step()
        with self._changed:
            result = self._results.pop(number)
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self, number: int) -> None:
        with self._changed:
            last = self._open == {number}
            self._open.discard(number)
            self._last.discard(number)
            self._changed.notify_all()
        if last:
            self.runner.close()

    def _step(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._last <= self._pending.keys(), timeout=_TOGETHER)
            taken, self._pending = self._pending, {}
            self._last = set(taken) & self._open
        try:
            results: Mapping[int, StepResult | BaseException] = self._compute(taken)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of each replica that took part
            results = dict.fromkeys(taken, error)
        with self._changed:
            self._results.update(results)
            self._leading = False
            self._changed.notify_all()

    def _compute(self, taken: Mapping[int, Batch]) -> dict[int, StepResult]:
        batches = [taken.get(number, Batch(())) for number in range(self.runner.replicas)]
        results = self.runner.run_all(batches)
        return {number: results[number] for number in taken}


class Replica:
    """One replica's runner. Satisfies ``engine.batch.Runner``; called from the thread of its own scheduler."""

    def __init__(self, conductor: Conductor, number: int) -> None:
        self._conductor = conductor
        self._number = number

    @property
    def cache(self) -> CacheShape:
        return self._conductor.runner.cache

    @property
    def devices(self) -> tuple[str, ...]:
        return self._conductor.runner.devices

    @property
    def max_scored_tokens(self) -> int:
        return self._conductor.runner.max_scored_tokens

    def run(self, batch: Batch) -> StepResult:
        return self._conductor.run(self._number, batch)

    def close(self) -> None:
        self._conductor.close(self._number)
