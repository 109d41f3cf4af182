"""The runner that computes: a scheduled batch through the model, tokens out. Satisfies ``engine.batch.Runner``."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from energyopt.core.clock import Clock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError, EngineError
from energyopt.core.units import Bytes
from kernels.ops import CopyBlocks
from kernels.pages import Pages, plan_pages

from .answers import MOST_SCORED, answer
from .asleep import Parked, tensors_of
from .batch import Batch, CacheShape, StepResult
from .device_draw import drawer_of
from .graphs import Capturer, CudaCapturer, DecodeGraphs, Limits
from .inputs import StepInputs, step_inputs
from .kv.layout import GroupSpec, Layout, RecurrentState
from .memory import available_bytes, foreign_memory_errors
from .model.states import StateMoves
from .model.step import Paged, Slot, Stateful
from .models import LoadedModel, usable_threads
from .pool import PoolPlan, plan_pool
from .sampler import Sampler
from .speculative.draft_model import DraftModel

_CPU_SHARE = 0.25
"""Of free memory, on a CPU: the rest of the machine lives there too."""

_GPU_SHARE = 0.85
"""Of what the weights left of a GPU; the remainder is for activations."""


class TorchRunner:
    """Owns the KV pool: one tensor of bytes (slabs, blocks, slab bytes), as ``PoolPlan`` lays it out.

    It trusts the block ids it is given; two requests may share a block as long as neither writes it. Called from one
    thread.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        clock: Clock,
        shape: CacheShape | None = None,
        capturer: Capturer | None = None,
    ) -> None:
        """``shape`` is the pool's where others have a say in it; else it is what ``config`` asks for. ``capturer``
        makes graphs of decode steps; by default a GPU's own."""
        self._model = loaded.model
        self._weights = loaded.weights
        self._device = loaded.device
        self._clock = clock
        self._threads = usable_threads(config)
        self._sampler = Sampler(config.seed, loaded.tokenizer.eos_ids, drawer_of(loaded.model.draw))
        self._shape = shape or cache_shape(loaded, config)
        self._plan = pool_plan(loaded, config)
        self._pool: torch.Tensor | None = allocate_pool(loaded.device, self._plan, self._shape.num_blocks)
        self._views = self._plan.views(self._pool)
        self._make_graphs = partial(self._decode_graphs, config, loaded.max_model_len, capturer)
        self._graphs = self._make_graphs()
        self._parked = Parked()
        self.draft: DraftModel | None = None
        """A smaller model that guesses for this one; it sleeps and ends with the runner."""

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
    def copy_blocks(self) -> CopyBlocks | None:
        """What a mover of the pool's blocks is to copy with."""
        return self._model.copy_blocks

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and the KV pool, as chosen for "auto"."""
        return self._model.dtype

    @property
    def weights(self) -> str:
        """The form of the weights for people: a number format, or what share of them is rounded to how many bits."""
        return self._weights

    @property
    def devices(self) -> tuple[str, ...]:
        return (device_identity(self._device),)

    @property
    def max_draft_tokens(self) -> int:
        """Rows of one request that are sampled in one step, but for the first: a prefill's chunk by its shape."""
        return 16

    @property
    def max_scored_tokens(self) -> int:
        return MOST_SCORED

    def run(self, batch: Batch) -> StepResult:
        start = self._clock.now()
        logits = self.logits(batch)
        sampled, scores = answer(self._sampler, batch, logits)
        self._wait()
        return StepResult(sampled, start, self._clock.now(), scores)

    def logits(self, batch: Batch) -> torch.Tensor:
        """Compute the batch; logits (rows, vocab), float32: of each item the last ``ScheduledRequest.rows``."""
        inputs = step_inputs(batch)
        captured = self._captured_logits(inputs)
        return self.head(inputs, self.stage(inputs)) if captured is None else captured

    def stage(self, inputs: StepInputs, hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Compute this pipeline stage; hidden states (rows, hidden) behind it from those before it.

        The first stage takes none: it embeds the tokens.
        """
        pool = self.pool
        self._use_threads()
        with torch.inference_mode(), foreign_memory_errors(f"A step of {len(inputs.tokens)} tokens"):
            copy_blocks(pool, inputs)
            both = torch.tensor((inputs.tokens, inputs.positions()), dtype=torch.int64).to(self._device)
            hidden = self._model.embed(both[0]) if hidden is None else hidden
            return self._model.forward(hidden, both[1], self._slots(inputs))

    def head(self, inputs: StepInputs, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of the rows that sample, from the hidden states behind the last stage."""
        with torch.inference_mode(), foreign_memory_errors(f"Logits of {len(inputs.samples)} tokens"):
            if len(inputs.samples) < len(hidden):
                hidden = hidden[torch.tensor(inputs.samples, dtype=torch.int64, device=self._device)]
            return self._model.logits(hidden)

    @property
    def sleeps(self) -> bool:
        return self._device.type != "cpu"

    def sleep(self) -> Bytes:
        """Move the weights to host memory and give the pool up; graphs hold addresses, so they are made anew."""
        self._graphs = None
        freed = self._parked.park(tensors_of(self._model), self._device, keep=True)
        freed = Bytes(freed + self._parked.park(iter((self.pool,)), self._device, keep=False))
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return freed if self.draft is None else Bytes(freed + self.draft.sleep())

    def wake(self) -> None:
        if self.draft is not None:
            self.draft.wake()
        try:
            with foreign_memory_errors("Waking the engine"):
                self._parked.restore()
        except BaseException:
            if self.draft is not None:
                self.draft.sleep()
            raise
        self._graphs = self._make_graphs()

    def close(self) -> None:
        if self.draft is not None:
            self.draft.close()
        self._graphs = None  # a graph holds on to the pool
        self._pool = None
        self._views = []

    def _decode_graphs(
        self, config: EngineConfig, max_model_len: int, capturer: Capturer | None
    ) -> DecodeGraphs | None:
        """None where decode steps are not to be captured, or cannot be."""
        if config.enforce_eager or not self._model.captures or not self._plan.plain:
            return None
        if capturer is None:
            if self._device.type != "cuda":
                return None
            capturer = CudaCapturer(self._device)
        block_tokens = self._shape.block_tokens
        limits = Limits(config.max_num_seqs, -(-max_model_len // block_tokens), block_tokens)
        return DecodeGraphs(self._decode_step, limits, self._device, capturer)

    def _decode_step(self, tokens: torch.Tensor, positions: torch.Tensor, pages: Pages) -> torch.Tensor:
        """Logits (rows, vocab) of one token per request."""
        slots = [Paged(view[0], pages) for view in self._views]
        return self._model.logits(self._model.forward(self._model.embed(tokens), positions, slots))

    def _captured_logits(self, inputs: StepInputs) -> torch.Tensor | None:
        """Logits of a decode step out of a graph; None where there is none for it."""
        if self._graphs is None:
            return None
        with torch.inference_mode(), foreign_memory_errors(f"A step of {len(inputs.tokens)} tokens"):
            copy_blocks(self.pool, inputs)
            return self._graphs.logits(inputs)

    def _slots(self, inputs: StepInputs) -> list[Slot]:
        """Where the rows lie in each layer's part of the pool."""
        places = [self._place(inputs, group, spec) for group, spec in enumerate(self._plan.groups)]
        slots: list[Slot] = []
        for (group, _), view in zip(self._plan.places, self._views, strict=True):
            place = places[group]
            slots.append(Stateful(view, place) if isinstance(place, StateMoves) else Paged(view[0], place))
        return slots

    def _place(self, inputs: StepInputs, group: int, spec: GroupSpec) -> Pages | StateMoves:
        spans = inputs.spans_of(group, spec)
        if isinstance(spec, RecurrentState):
            return StateMoves(spans, spec.block_tokens, self._device)
        return plan_pages(spans, spec.block_tokens, self._device, self._model.activations)

    def _wait(self) -> None:
        """A step that samples nothing leaves its work queued on a GPU; its end is when that is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _use_threads(self) -> None:
        """The thread count is a setting of the calling thread, and the loop's thread is not the one that built us."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)


def copy_blocks(pool: torch.Tensor, inputs: StepInputs) -> None:
    """The copies that come before a step; making them twice changes nothing."""
    for copy in inputs.copies:
        pool[:, copy.target] = pool[:, copy.source]


def cache_shape(loaded: LoadedModel, config: EngineConfig) -> CacheShape:
    """``config.kv.memory_bytes``, or a share of free memory, but no more than all sequences could fill.

    Raises ConfigError if that is not one block for each group of layers.
    """
    plan = pool_plan(loaded, config)
    if config.kv.memory_bytes is not None:
        blocks = config.kv.memory_bytes // plan.block_bytes
    else:
        share = _GPU_SHARE if loaded.device.type == "cuda" else _CPU_SHARE
        peak = Layout(plan.groups).peak_blocks(loaded.max_model_len, config.max_num_batched_tokens)
        useful = config.max_num_seqs * peak
        blocks = min(useful, int(available_bytes(loaded.device) * share) // plan.block_bytes)
    if blocks < len(plan.groups):
        raise ConfigError(
            f"The KV cache has no room: one block of {plan.block_tokens} tokens takes {plan.block_bytes} bytes, and "
            f"{len(plan.groups)} of them are the least."
        )
    return plan.shape(blocks)


def pool_plan(loaded: LoadedModel, config: EngineConfig) -> PoolPlan:
    """What lies where in the pool of a model, or of one rank's part of it."""
    whole = loaded.model.is_first and loaded.model.is_last
    return plan_pool(loaded.model.keeps, config.kv.block_tokens, loaded.dtype, windows=whole)


def allocate_pool(device: torch.device, plan: PoolPlan, num_blocks: int) -> torch.Tensor:
    """A pool of zeros: a masked position has weight 0, and 0 times the NaN of uncleared memory would still be NaN.

    Raises OutOfMemoryError. On a CPU pages are taken when first written, so a large pool costs no time at start; that
    it would not fit is therefore checked here.
    """
    shape = (plan.slabs, num_blocks, plan.slab_bytes)
    size = num_blocks * plan.block_bytes
    what = f"A KV pool of {num_blocks} blocks ({size} bytes)"
    with foreign_memory_errors(what):
        if device.type != "cpu":
            return torch.zeros(shape, dtype=torch.uint8, device=device)
        if size > available_bytes(device):
            raise MemoryError(what)
        return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(shape)


def device_identity(device: torch.device) -> str:
    """``cpu:0``, or a GPU's UUID in the form NVML uses: ``GPU-...``."""
    if device.type == "cpu":
        return "cpu:0"
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
