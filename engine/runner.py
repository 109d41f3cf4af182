"""The runner that computes: a scheduled batch through the model, tokens out. Satisfies ``engine.batch.Runner``."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch

from energyopt.core.clock import Clock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError, EngineError
from energyopt.core.units import Bytes
from kernels.pages import Pages, plan_pages

from .batch import Batch, CacheShape, StepResult
from .inputs import StepInputs, step_inputs
from .memory import available_bytes, foreign_memory_errors
from .model.step import Keeps
from .models import LoadedModel, usable_threads
from .sampler import Sampler

_CPU_SHARE = 0.25
"""Of free memory, on a CPU: the rest of the machine lives there too."""

_GPU_SHARE = 0.85
"""Of what the weights left of a GPU; the remainder is for activations."""


class TorchRunner:
    """Owns the KV pool: one tensor (layers, blocks, block_tokens, *what a layer keeps of a token).

    It trusts the block ids it is given; two requests may share a block as long as neither writes it. Called from one
    thread.
    """

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig, clock: Clock, shape: CacheShape | None = None
    ) -> None:
        """``shape`` is the pool's where others have a say in it; else it is what ``config`` asks for."""
        self._model = loaded.model
        self._device = loaded.device
        self._clock = clock
        self._threads = usable_threads(config)
        self._sampler = Sampler(config.seed, loaded.tokenizer.eos_ids)
        self._shape = shape or cache_shape(loaded, config)
        self._pool: torch.Tensor | None = allocate_pool(loaded, self._shape)

    @property
    def cache(self) -> CacheShape:
        return self._shape

    @property
    def pool(self) -> torch.Tensor:
        """The KV tensor, for a mover of its blocks. Raises EngineError after ``close``."""
        if self._pool is None:
            raise EngineError("The runner is closed.")
        return self._pool

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and the KV pool, as chosen for "auto"."""
        return self._model.dtype

    @property
    def devices(self) -> tuple[str, ...]:
        return (device_identity(self._device),)

    def run(self, batch: Batch) -> StepResult:
        start = self._clock.now()
        logits = self.logits(batch)
        requests = [item.request for item in batch.items if item.sample]
        with torch.inference_mode(), foreign_memory_errors(f"Sampling for {len(requests)} requests"):
            chosen = iter(self._sampler.sample(logits, requests))
        sampled = [next(chosen) if item.sample else None for item in batch.items]
        self._wait()
        return StepResult(sampled, start, self._clock.now())

    def logits(self, batch: Batch) -> torch.Tensor:
        """Compute the batch; logits (items that sample, vocab), float32, for the token after each of them."""
        inputs = step_inputs(batch)
        return self.head(inputs, self.stage(inputs))

    def stage(self, inputs: StepInputs, hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Compute this pipeline stage; hidden states (rows, hidden) behind it from those before it.

        The first stage takes none: it embeds the tokens.
        """
        pool = self.pool
        self._use_threads()
        with torch.inference_mode(), foreign_memory_errors(f"A step of {len(inputs.tokens)} tokens"):
            for copy in inputs.copies:
                pool[:, copy.target] = pool[:, copy.source]
            both = torch.tensor((inputs.tokens, inputs.positions())).to(self._device)
            hidden = self._model.embed(both[0]) if hidden is None else hidden
            return self._model.forward(hidden, both[1], self._pages(inputs), pool.unbind())

    def head(self, inputs: StepInputs, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of the rows that sample, from the hidden states behind the last stage."""
        with torch.inference_mode(), foreign_memory_errors(f"Logits of {len(inputs.samples)} tokens"):
            if len(inputs.samples) < len(hidden):
                hidden = hidden[torch.tensor(inputs.samples, dtype=torch.int64, device=self._device)]
            return self._model.logits(hidden)

    def close(self) -> None:
        self._pool = None

    def _pages(self, inputs: StepInputs) -> Pages:
        """Where the rows lie in the pool."""
        return plan_pages(inputs.spans, self._shape.block_tokens, self._device, self._model.activations)

    def _wait(self) -> None:
        """A step that samples nothing leaves its work queued on a GPU; its end is when that is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _use_threads(self) -> None:
        """The thread count is a setting of the calling thread, and the loop's thread is not the one that built us."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)


def cache_shape(loaded: LoadedModel, config: EngineConfig) -> CacheShape:
    """``config.kv.memory_bytes``, or a share of free memory, but no more than all sequences could fill.

    Raises ConfigError if that is not one block.
    """
    block_tokens = config.kv.block_tokens
    block_bytes = kv_bytes_per_token(loaded.model.keeps, loaded.dtype) * block_tokens
    if config.kv.memory_bytes is not None:
        blocks = config.kv.memory_bytes // block_bytes
    else:
        share = _GPU_SHARE if loaded.device.type == "cuda" else _CPU_SHARE
        useful = config.max_num_seqs * -(-loaded.max_model_len // block_tokens)
        blocks = min(useful, int(available_bytes(loaded.device) * share) // block_bytes)
    if blocks < 1:
        raise ConfigError(f"The KV cache has no room: one block of {block_tokens} tokens takes {block_bytes} bytes.")
    return CacheShape(blocks, block_tokens, Bytes(block_bytes))


def allocate_pool(loaded: LoadedModel, cache: CacheShape) -> torch.Tensor:
    """A pool of zeros: a masked position has weight 0, and 0 times the NaN of uncleared memory would still be NaN.

    Raises OutOfMemoryError. On a CPU pages are taken when first written, so a large pool costs no time at start; that
    it would not fit is therefore checked here.
    """
    keeps = loaded.model.keeps
    shape = (len(keeps), cache.num_blocks, cache.block_tokens, *keeps[0].token)
    size = cache.num_blocks * cache.bytes_per_block
    what = f"A KV pool of {cache.num_blocks} blocks ({size} bytes)"
    with foreign_memory_errors(what):
        if loaded.device.type != "cpu":
            return torch.zeros(shape, dtype=loaded.dtype, device=loaded.device)
        if size > available_bytes(loaded.device):
            raise MemoryError(what)
        return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(loaded.dtype).view(shape)


def kv_bytes_per_token(keeps: Iterable[Keeps], dtype: torch.dtype) -> int:
    """What all layers of this rank keep of one token."""
    return sum(math.prod(layer.token) for layer in keeps) * dtype.itemsize


def device_identity(device: torch.device) -> str:
    """``cpu:0``, or a GPU's UUID in the form NVML uses: ``GPU-...``."""
    if device.type == "cpu":
        return "cpu:0"
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
