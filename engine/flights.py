"""Batches under way: a pipeline computes several at once, and a request is in one of them at most."""

from __future__ import annotations

from collections import deque
from typing import Protocol, runtime_checkable

from .batch import Batch, Runner, StepResult
from .request import Request


@runtime_checkable
class Pipeline(Protocol):
    """What a Runner also is if it computes ``depth`` batches at a time: started in order, finished in that order."""

    @property
    def depth(self) -> int: ...

    def start(self, batch: Batch) -> None:
        """Begin a batch. Raises EngineError, also if ``depth`` of them are under way."""
        ...

    def finish(self) -> StepResult:
        """The result of the oldest batch under way; blocks. Raises what ``Runner.run`` raises."""
        ...


class OneAtATime:
    """Any runner as a pipeline of depth 1. Satisfies ``Pipeline``."""

    depth = 1

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._begun: deque[Batch] = deque()

    def start(self, batch: Batch) -> None:
        self._begun.append(batch)

    def finish(self) -> StepResult:
        return self._runner.run(self._begun.popleft())


def as_pipeline(runner: Runner) -> Pipeline:
    return runner if isinstance(runner, Pipeline) else OneAtATime(runner)


class Flights:
    """Which requests are in a batch that was scheduled and not settled; with a depth of 1 none ever is, when asked."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.requests: set[Request] = set()
        self._batches = 0

    def __bool__(self) -> bool:
        return self._batches > 0

    def share(self, running: int) -> int:
        """How many decodes one batch may take, so that every stage of the pipeline has some."""
        return -(-running // self.depth)

    def depart(self, batch: Batch) -> Batch:
        self._batches += 1
        if self.depth > 1:
            self.requests.update(item.request for item in batch.items)
        return batch

    def land(self, batch: Batch) -> None:
        self._batches -= 1
        if self.depth > 1:
            self.requests.difference_update(item.request for item in batch.items)
