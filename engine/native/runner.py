"""The runner of a native model: one call of the library a step. Satisfies ``engine.batch.Runner`` and verifies drafts.

The pool is (layers * kv_heads, blocks, block) of 16-bit numbers, laid out as kernels/cpu/pages.h says: to whoever moves
blocks it is a pool of ``layers * kv_heads`` layers.
"""

from __future__ import annotations

import logging
import mmap

import numpy as np
import torch

from energyopt.core.clock import Clock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError, EngineError, OutOfMemoryError
from energyopt.core.units import Bytes
from kernels.cpu.program import NativeError, Step

from ..answers import MOST_SCORED, answer
from ..batch import Batch, CacheShape, StepResult
from ..memory import available_bytes, foreign_memory_errors, lazy_pages
from ..models import OpenedModel, usable_threads
from ..sampler import Sampler
from ..speculative.draft_model import DraftModel
from .model import NativeModel
from .threads import ThreadPolicy

logger = logging.getLogger(__name__)

MEMORY_SHARE = 0.25
"""Of free memory: the rest of the machine lives there too."""
MOST_DRAFT = 16
_CPU = torch.device("cpu")


class NativeRunner:
    """Owns the KV pool and the model. It trusts the block ids it is given. Called from one thread.

    Without ``config.threads`` it tries how many threads are best, again and again.
    """

    max_draft_tokens = MOST_DRAFT
    max_scored_tokens = MOST_SCORED

    def __init__(self, loaded: OpenedModel, model: NativeModel, config: EngineConfig, clock: Clock) -> None:
        """Raises ConfigError or OutOfMemoryError for a pool of no possible size; the model is then closed."""
        self._model = model
        self._clock = clock
        self._sampler = Sampler(config.seed, loaded.tokenizer.eos_ids)
        self._threads = usable_threads(config)
        self.draft: DraftModel | None = None
        """A smaller model that guesses for this one; it ends with the runner."""
        self._policy = ThreadPolicy(self._threads) if config.threads is None else None
        try:
            self._shape = cache_shape(model, config, loaded.max_model_len)
            memory = _allocate(self._shape)
        except BaseException:
            model.close()
            raise
        rows = model.spec.layers * model.spec.kv_heads
        pool = np.frombuffer(memory, np.uint16)[: rows * self._shape.num_blocks * self._block_size()]
        pool = pool.reshape(rows, self._shape.num_blocks, -1)
        model.program.use_pool(pool, config.kv.block_tokens)
        self._pool: torch.Tensor | None = torch.from_numpy(pool.view(np.int16))

    @property
    def cache(self) -> CacheShape:
        return self._shape

    @property
    def devices(self) -> tuple[str, ...]:
        return ("cpu:0",)

    @property
    def pool(self) -> torch.Tensor:
        """The KV memory, for a mover of its blocks. Raises EngineError after ``close``."""
        if self._pool is None:
            raise EngineError("The runner is closed.")
        return self._pool

    @property
    def weights(self) -> str:
        """The format of the weights, as ``NativeModel.quantization``."""
        return self._model.quantization

    @property
    def threads(self) -> int:
        """Threads that the next step takes, trials aside."""
        return self._policy.current if self._policy is not None else self._threads

    def run(self, batch: Batch) -> StepResult:
        start = self._clock.now()
        logits = self._compute(batch)
        if torch.get_num_threads() != 1:  # a row's maximum is too little work to share
            torch.set_num_threads(1)
        sampled, scores = answer(self._sampler, batch, logits)
        return StepResult(sampled, start, self._clock.now(), scores)

    def logits(self, batch: Batch) -> torch.Tensor:
        """Compute the batch; logits (rows, vocab), float32: of each item the last ``ScheduledRequest.rows``."""
        return self._compute(batch).clone()

    def close(self) -> None:
        if self.draft is not None:
            self.draft.close()
        self._pool = None
        self._model.close()

    def _compute(self, batch: Batch) -> torch.Tensor:
        """As ``logits``, in memory that the next step overwrites."""
        pool = self.pool
        for copy in batch.copies:
            pool[:, copy.target] = pool[:, copy.source]
        step = step_of(batch)
        rows = len(step.tokens)
        threads = self._threads if self._policy is None else self._policy.choose(rows)
        start = self._clock.now()
        try:
            with foreign_memory_errors(f"A step of {rows} tokens"):
                logits = torch.from_numpy(self._model.program.step(step, threads))
        except NativeError as error:
            raise EngineError(f"The native kernels refuse a step of {rows} tokens: {error}.") from error
        if self._policy is not None:
            self._learn(self._policy, rows, threads, self._clock.now() - start)
        return logits

    def _learn(self, policy: ThreadPolicy, rows: int, threads: int, seconds: float) -> None:
        before = policy.current
        policy.observe(rows, threads, seconds)
        if policy.current != before:
            logger.info("Steps take %d threads now, not %d: that is faster at present.", policy.current, before)

    def _block_size(self) -> int:
        return self._model.program.block_size(self._model.spec.head_dim, self._shape.block_tokens)


def step_of(batch: Batch) -> Step:
    """A batch as the library takes it."""
    tokens: list[int] = []
    positions: list[int] = []
    spans: list[tuple[int, int, int, int]] = []
    tables: list[int] = []
    wanted: list[int] = []
    for item in batch.items:
        stop = item.start + item.count
        spans.append((len(tokens), item.start, item.count, len(tables)))
        tokens += item.tokens()
        positions += range(item.start, stop)
        tables += item.request.block_ids
        wanted += range(len(tokens) - item.rows, len(tokens))
    return Step(
        np.array(tokens, np.int32),
        np.array(positions, np.int32),
        np.array(spans, np.int32).reshape(-1, 4),
        np.array(tables, np.int32),
        np.array(wanted, np.int32),
    )


def cache_shape(model: NativeModel, config: EngineConfig, max_model_len: int) -> CacheShape:
    """``config.kv.memory_bytes``, or a share of free memory, but no more than all sequences could fill.

    Blocks of other than 16 tokens and their multiples are padded to that, and cost as much. Raises ConfigError if
    there is no room for one block.
    """
    block_tokens, spec = config.kv.block_tokens, model.spec
    block_bytes = 2 * spec.layers * spec.kv_heads * model.program.block_size(spec.head_dim, block_tokens)
    if config.kv.memory_bytes is not None:
        blocks = config.kv.memory_bytes // block_bytes
    else:
        useful = config.max_num_seqs * -(-max_model_len // block_tokens)
        blocks = min(useful, int(available_bytes(_CPU) * MEMORY_SHARE) // block_bytes)
    if blocks < 1:
        raise ConfigError(f"The KV cache has no room: one block of {block_tokens} tokens takes {block_bytes} bytes.")
    return CacheShape(blocks, block_tokens, Bytes(block_bytes))


def _allocate(shape: CacheShape) -> mmap.mmap:
    """Raises OutOfMemoryError."""
    size = shape.num_blocks * shape.bytes_per_block
    if size > available_bytes(_CPU):
        raise OutOfMemoryError(f"A KV pool of {shape.num_blocks} blocks ({size} bytes) did not fit into memory.")
    with foreign_memory_errors(f"A KV pool of {shape.num_blocks} blocks ({size} bytes)"):
        return lazy_pages(size)
