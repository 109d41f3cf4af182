"""A fake runner with several batches under way, for tests of whatever drives a pipeline."""

from __future__ import annotations

from collections import deque

from energyopt.core.errors import EngineError

from .batch import Batch, CacheShape, StepResult
from .fake import FakeRunner


class FakePipeline(FakeRunner):
    """Computes a batch when it is started, as a first stage would, and tells when it is asked. Satisfies ``Pipeline``.

    ``most`` is how many were under way at once. Raises EngineError for a request that is in two batches.
    """

    def __init__(self, cache: CacheShape | None = None, *, depth: int) -> None:
        super().__init__(cache)
        self.depth = depth
        self.most = 0
        self._results: deque[tuple[Batch, StepResult]] = deque()

    def start(self, batch: Batch) -> None:
        if len(self._results) >= self.depth:
            raise EngineError(f"{self.depth} batches are under way already.")
        flying = {id(item.request) for other, _ in self._results for item in other.items}
        if any(id(item.request) in flying for item in batch.items):
            raise EngineError("A request is in two batches at once.")
        self._results.append((batch, self.run(batch)))
        self.most = max(self.most, len(self._results))

    def finish(self) -> StepResult:
        return self._results.popleft()[1]
