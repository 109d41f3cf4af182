"""What a prefill leg computes of its prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ..batch import CacheShape
from ..kv.layout import FullAttention
from ..request import SamplingParams
from .params import Lend


def lent_prompt(prompt: Sequence[int], params: SamplingParams, cache: CacheShape) -> Sequence[int]:
    """The prompt, without its last token where some layers keep a window or a state instead of every position.

    The decode leg computes the last token. It reads the state *before* that token, which is only there if the prefill
    leg stopped there; what that leg samples is then of no use, and nobody uses it.
    """
    cut = isinstance(params.transfer, Lend) and len(prompt) > 1
    reads_all = all(isinstance(group, FullAttention) for group in cache.all_groups)
    return prompt[:-1] if cut and not reads_all else prompt
