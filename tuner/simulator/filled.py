"""A cache that takes over what another engine has computed: the decode side of a hand-over."""

from __future__ import annotations

from engine.batch import CacheShape
from engine.kv.coordinator import KvCoordinator
from engine.kv.prefix import PrefixHit
from engine.request import Request


class FilledCache(KvCoordinator):
    """Admits an expected request with every known token but the newest in its blocks, as a transfer leaves them.

    If such a request is preempted later, it computes again like any other: what was sent is gone.
    """

    def __init__(self, shape: CacheShape, *, prefix_caching: bool) -> None:
        super().__init__(shape, prefix_caching=prefix_caching)
        self._expected: set[str] = set()

    def expect(self, request: Request) -> None:
        """The cache of this request has arrived."""
        self._expected.add(request.id)

    def begin(self, request: Request, hit: PrefixHit) -> None:
        super().begin(request, hit)
        if request.id in self._expected:
            self._expected.discard(request.id)
            self.grow(request, request.num_tokens - 1)
            self.commit(request, request.num_tokens - 1)
