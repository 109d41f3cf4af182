"""An engine of a pool without a model, for tests that kill engines: it starts quickly and takes its time to answer.

Run by a ``PoolProcess`` in place of the real one. Tokens are bytes, and a pure function of the prompt that goes through
the KV blocks: one that is mixed up changes the text. It loads no torch, which takes seconds.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections.abc import Sequence

from api.app import create_app
from api.fake import FakeChat, FakeMetrics
from api.serve import bind, serve
from api.services import Services
from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig, KvTransferConfig
from energyopt.core.units import Bytes
from engine.batch import Batch, CacheShape, Sampled, ScheduledRequest, StepResult
from engine.disagg.assembly import open_exchange
from engine.fake_kv import FakeKv, prefix_digest
from engine.front import EngineFront

STEP = 0.01
TOKENS = 16


class SlowRunner:
    """A step takes ``STEP`` seconds."""

    devices = ("fake-0",)
    cache = CacheShape(512, TOKENS, Bytes(8 * TOKENS))

    def __init__(self, clock: MonotonicClock) -> None:
        self.kv = FakeKv(self.cache)
        self._clock = clock

    def run(self, batch: Batch) -> StepResult:
        start = self._clock.now()
        sampled = [self._compute(item) for item in batch.items]
        time.sleep(STEP)
        return StepResult(sampled, start, self._clock.now())

    def close(self) -> None:
        """Nothing is held."""

    def _compute(self, item: ScheduledRequest) -> Sampled | None:
        digest = self.kv.newest(item.request, item.start - 1) if item.start else 0
        digests = []
        for token in item.request.tokens(item.start, item.start + item.count):
            digest = prefix_digest(digest, token)
            digests.append(digest)
        self.kv.write(item.request, item.start, digests)
        return Sampled(97 + digest % 26) if item.sample else None


class SlowMover:
    """Blocks of a ``SlowRunner`` as bytes; a position that was never written is all ones."""

    layout = "slow"
    block_bytes = 8 * TOKENS

    def __init__(self, kv: FakeKv) -> None:
        self._kv = kv

    def allocate(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def read(self, slots: Sequence[int], into: Sequence[memoryview]) -> None:
        for slot, view in zip(slots, into, strict=True):
            digests = [(1 << 64) - 1 if digest is None else digest for digest in self._kv.get(slot)]
            view[:] = struct.pack(f"<{TOKENS}Q", *digests, *[(1 << 64) - 1] * (TOKENS - len(digests)))

    def write(self, slots: Sequence[int], source: Sequence[memoryview]) -> None:
        for slot, view in zip(slots, source, strict=True):
            digests = struct.unpack(f"<{TOKENS}Q", view)
            self._kv.set(slot, [None if digest == (1 << 64) - 1 else digest for digest in digests])


class ByteTokenizer:
    """Bytes as ids."""

    eos_ids = frozenset({256})
    special_ids = frozenset({256})
    vocab_size = 257

    def at_least(self, text: str) -> int:
        return len(text)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes((token,)) if token < 256 else b""

    def token_text(self, token: int) -> str:
        return self.decode([token])


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)


def main() -> None:
    clock = MonotonicClock()
    with open(0, "rb", buffering=0, closefd=False) as given:
        given.readline(1 << 20)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runner, tokenizer = SlowRunner(clock), ByteTokenizer()
    front = EngineFront(
        EngineConfig(model="fake", kv=KvConfig(block_tokens=TOKENS)),
        runner,
        tokenizer,
        max_model_len=4096,
        clock=clock,
        remote=open_exchange(KvTransferConfig(), SlowMover(runner.kv), clock, secret=b"test"),
    )
    services = Services(front, tokenizer, FakeChat(), FakeMetrics(), ("fake",), "0", hands_over=True)
    listener = bind("127.0.0.1", 0)
    ready = f"serving on http://127.0.0.1:{listener.getsockname()[1]}/v1"
    serve(create_app(services), listener, abort=front.close, on_ready=lambda: print(ready, file=sys.stderr))  # noqa: T201
    front.close()


if __name__ == "__main__":
    main()
