"""A runner and a tokenizer without a model, for tests of everything that stands on the engine.

The fake runner's tokens are a pure function of the request's own tokens, computed *through* the KV blocks it was
given: a scheduler or cache that mixes up blocks changes the tokens, or is told so outright with ``verify``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.errors import EngineError
from energyopt.core.units import Bytes

from .answers import score
from .batch import Batch, CacheShape, Sampled, ScheduledRequest, StepResult
from .fake_kv import FakeKv, prefix_digest
from .request import Request, TokenLogprobs
from .sampler import Sampler, accepted
from .speculative.draft_model import DraftModel

LOWERCASE = range(97, 123)


class FakeRunner:
    """A Runner that stores a digest of the prefix where a model would store keys and values.

    ``step_time`` is what one step takes: seconds, or a function of the batch. ``fail_at`` is the number of the step
    (from 0) that raises EngineError. ``vocabulary`` are the ids it may sample, lowercase letters by default; with
    ``say`` it samples those ids in order, over and over. ``verify`` checks before each step that every slot a request
    reads holds that request's own prefix, in every group of layers, and that no block is written for two requests.
    ``random_vocab`` lets the real sampler choose, from that many random logits that depend on the prefix.
    """

    def __init__(
        self,
        cache: CacheShape | None = None,
        clock: Clock | None = None,
        *,
        step_time: float | Callable[[Batch], float] = 0.0,
        fail_at: int | None = None,
        vocabulary: Sequence[int] = LOWERCASE,
        say: Sequence[int] | None = None,
        verify: bool = True,
        devices: tuple[str, ...] = ("fake-0",),
        random_vocab: int | None = None,
    ) -> None:
        self.steps = 0
        self.closed = self.asleep = False
        self.draft: DraftModel | None = None
        self.thread: int | None = None
        self._cache = cache or CacheShape(num_blocks=256, block_tokens=16, bytes_per_block=Bytes(4096))
        self._clock = clock or MonotonicClock()
        self._step_time = step_time
        self._fail_at = fail_at
        self._vocabulary = tuple(vocabulary)
        self._say = tuple(say) if say else None
        self._verify = verify
        self._devices = devices
        self._kv = FakeKv(self._cache)
        self._random = None if random_vocab is None else RandomLogits(random_vocab)

    @property
    def cache(self) -> CacheShape:
        return self._cache

    @property
    def devices(self) -> tuple[str, ...]:
        return self._devices

    @property
    def max_draft_tokens(self) -> int:
        return 16

    @property
    def max_scored_tokens(self) -> int:
        return 16

    @property
    def sleeps(self) -> bool:
        return True

    def sleep(self) -> Bytes:
        """Lose what the blocks hold. Raises EngineError if it sleeps already."""
        if self.asleep:
            raise EngineError("The fake runner was put to sleep twice.")
        self.asleep, self._kv = True, FakeKv(self._cache)
        return Bytes(self._cache.num_blocks * self._cache.bytes_per_block)

    def wake(self) -> None:
        self.asleep = False

    def run(self, batch: Batch) -> StepResult:
        """Compute the batch. Raises EngineError at ``fail_at``, on a second thread, after ``close`` or on bad KV."""
        self._check_call()
        start = self._clock.now()
        self._kv.copy(batch.copies)
        if self._verify:
            self._kv.verify(batch)
        answers = [self._compute(item) for item in batch.items]
        step_time = self._step_time(batch) if callable(self._step_time) else self._step_time
        self._clock.sleep(type(start)(step_time))
        self.steps += 1
        sampled, scores = [one for one, _ in answers], [some for _, some in answers]
        return StepResult(sampled, start, self._clock.now(), scores)

    def close(self) -> None:
        self.closed = True
        if self.draft is not None:
            self.draft.close()

    def block(self, block: int) -> Sequence[int | None]:
        """What a block holds, for a mover; empty where nothing was written yet."""
        return self._kv.get(block)

    def set_block(self, block: int, digests: Sequence[int | None]) -> None:
        """Overwrite a block, as a load does."""
        self._kv.set(block, digests)

    def _check_call(self) -> None:
        if self.closed or self.asleep:
            raise EngineError(f"The fake runner was called {'after it was closed' if self.closed else 'asleep'}.")
        if self.thread not in (None, threading.get_ident()):
            raise EngineError("The fake runner was called from a second thread.")
        self.thread = threading.get_ident()
        if self.steps == self._fail_at:
            raise EngineError(f"The fake runner failed at step {self.steps}, as it was told to.")

    def _compute(self, item: ScheduledRequest) -> tuple[Sampled | None, tuple[TokenLogprobs, ...]]:
        """The token sampled, if one is, and the scores of the prompt's."""
        request = item.request
        digest = self._kv.newest(request, item.start - 1) if item.start else 0
        digests: list[int] = []
        for token in item.tokens():
            digest = prefix_digest(digest, token)
            digests.append(digest)
        self._kv.write(request, item.start, digests)
        rows = digests[len(digests) - item.rows :]
        scores, rows = self._score(item, rows[: item.scored]), rows[item.scored :]
        if not item.sample:
            return None, scores
        if self._random is not None:
            return self._random.sample(request, rows, item.draft), scores
        return accepted([self._sample(request, row, ahead) for ahead, row in enumerate(rows)], item.draft), scores

    def _score(self, item: ScheduledRequest, rows: Sequence[int]) -> tuple[TokenLogprobs, ...]:
        """A quarter more unlikely than the most likely token, which follows from the digest, unless it is that one."""
        known, top = len(item.request.scores) + 1, item.request.params.prompt_logprobs or 0
        tokens = item.request.tokens(known, known + len(rows))
        if self._random is not None:
            return score(self._random.logits(rows), tokens, top) if rows else ()
        best = [self._vocabulary[digest % len(self._vocabulary)] for digest in rows]
        return tuple(
            TokenLogprobs(-0.5 if token == likely else -0.75, ((likely, -0.5),)[:top])
            for token, likely in zip(tokens, best, strict=True)
        )

    def _sample(self, request: Request, digest: int, ahead: int) -> Sampled:
        if self._say is not None:
            token = self._say[(len(request.output) + ahead) % len(self._say)]
        else:
            token = self._vocabulary[digest % len(self._vocabulary)]
        wanted = request.params.logprobs
        if wanted is None:
            return Sampled(token)
        others = [other for other in self._vocabulary if other != token]
        top = ((token, -0.5), *((other, -1.0 - rank) for rank, other in enumerate(others)))
        return Sampled(token, TokenLogprobs(-0.5, top[:wanted]))


class RandomLogits:
    """Logits that look random and depend on a digest alone, and the engine's sampler over them."""

    def __init__(self, vocab: int, ends: Sequence[int] = (256,), seed: int = 0) -> None:
        self._vocab = vocab
        self._sampler = Sampler(seed, ends)

    def sample(self, request: Request, digests: Sequence[int], draft: tuple[int, ...] = ()) -> Sampled:
        """A digest for the next token, and one for the token after each guess."""
        return self._sampler.sample(self.logits(digests), [request], [draft])[0]

    def logits(self, digests: Sequence[int]) -> torch.Tensor:
        """A row for each digest."""
        rows = [np.random.default_rng(digest).standard_normal(self._vocab, dtype=np.float32) for digest in digests]
        return torch.from_numpy(3 * np.stack(rows))


class FakeTokenizer:
    """UTF-8 bytes as ids 0 to 255, then the special tokens, by name; the first special one ends a text."""

    def __init__(self, specials: Sequence[str] = ("<|end|>", "<|start|>", "<|user|>", "<|assistant|>")) -> None:
        self._specials = tuple(specials)
        self._pattern = re.compile("(" + "|".join(map(re.escape, self._specials)) + ")")

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({256})

    @property
    def vocab_size(self) -> int:
        return 256 + len(self._specials)

    def at_least(self, text: str) -> int:
        return len(text) // max((1, *map(len, self._specials)))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        if not special:
            return list(text.encode())
        ids: list[int] = []
        for part in self._pattern.split(text):
            ids += [256 + self._specials.index(part)] if part in self._specials else part.encode()
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        parts = [
            bytes([token]) if token < 256 else b"" if skip_special else self._specials[token - 256].encode()
            for token in ids
        ]
        return b"".join(parts).decode(errors="replace")

    def token_text(self, token: int) -> str:
        return self.decode([token], skip_special=False)

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(range(256, self.vocab_size))

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else self._specials[token - 256].encode()
