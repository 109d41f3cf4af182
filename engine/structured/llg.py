"""Guides by llguidance, which computes masks as they are asked for: nothing is precomputed for a grammar."""

from __future__ import annotations

import threading

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ..ports import Tokenizer
from .grammars import first_line, grammar_of
from .late import LateGuide
from .ports import Guide, GuideError, GuideSpec
from .vocabulary import guide_vocabulary

_LIMITS = LLParserLimits(
    max_items_in_row=2000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    precompute_large_lexemes=False,
    verbose_errors=False,
)
"""The library's own bounds, tighter in memory: about 2 kB a lexer state. A hostile schema costs at most a second."""


class LlGuide:
    """Satisfies ``Guide`` over one matcher."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def finished(self) -> bool:
        return self._matcher.is_stopped()

    @property
    def failure(self) -> str | None:
        return first_line(self._matcher.get_error()) if self._matcher.is_error() else None

    def allowed(self) -> bytes:
        return self._matcher.compute_bitmask()

    def advance(self, token: int) -> None:
        self._matcher.consume_token(token)

    def fork(self) -> LlGuide:
        return LlGuide(self._matcher.deep_copy())


class LlGuides:
    """Satisfies ``GuideMaker``. The vocabulary is read when the first guide is wanted."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None

    def make(self, spec: GuideSpec) -> Guide:
        """Compile, and ask for the first mask: some forms that nothing satisfies are only found there."""
        matcher = LLMatcher(self._words(), grammar_of(spec), log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            message = f"{spec.field} cannot be followed: {first_line(matcher.get_error())}."
            raise GuideError(message, param=spec.field)
        guide, tokenizer = LlGuide(matcher), self._tokenizer
        if not spec.after:
            return guide
        return LateGuide(guide, spec.after.encode(), tokenizer.token_bytes, tokenizer.eos_ids, tokenizer.vocab_size)

    def _words(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = guide_vocabulary(self._tokenizer)
            return self._vocabulary
