"""What a cache without limits would find, request by request, in the order in which they are sent."""

from __future__ import annotations

from ..workload.trace import Call


class Foresight:
    """Predicts cached tokens from block ids. ``block_tokens`` None predicts nothing.

    At least one token of a prompt is always computed, so a prompt that is known whole has its last block taken off.
    """

    def __init__(self, block_tokens: int | None) -> None:
        self._block = block_tokens
        self._known: set[tuple[str, int]] = set()

    def cached(self, call: Call, salt: str) -> int | None:
        """Tokens of ``call`` that were sent before behind the same prefix; its blocks are known from now on."""
        if self._block is None or call.input_tokens is None or (not call.blocks and call.input_tokens >= self._block):
            return None
        full = call.blocks[: call.input_tokens // self._block]
        hits = next((index for index, name in enumerate(full) if (salt, name) not in self._known), len(full))
        self._known.update((salt, name) for name in full)
        whole = (call.input_tokens - 1) // self._block
        return min(hits, whole) * self._block
