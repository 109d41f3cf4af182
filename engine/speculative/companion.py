"""What a draft model needs to stand beside another: the same tokens, and its share of the memory for KV."""

from __future__ import annotations

from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes

from ..batch import CacheShape
from ..kv.layout import RecurrentState
from ..ports import Tokenizer


def draft_config(config: EngineConfig, model: str) -> EngineConfig:
    """The engine of a draft model: as the other's, with a context of its own and nothing kept of who has ended."""
    kv = KvConfig(block_tokens=config.kv.block_tokens, memory_bytes=config.kv.memory_bytes, prefix_caching=False)
    left = dict.fromkeys(("served_model_name", "speculative_config", "max_model_len", "idle_sleep", "kv_transfer"))
    return config.model_copy(update={"model": model, "kv": kv, **left})


def with_memory(config: EngineConfig, memory: Bytes) -> EngineConfig:
    """``config`` with a KV pool of that size."""
    return config.model_copy(update={"kv": config.kv.model_copy(update={"memory_bytes": memory})})


def check_same_tokens(name: str, draft: Tokenizer, target: Tokenizer) -> None:
    """Raise ConfigError unless every token of one is the other's token of the same number."""
    wish = f"speculative_config.model = {name!r} is not possible"
    if draft.vocab_size != target.vocab_size:
        raise ConfigError(
            f"{wish}: a draft model needs the tokens of the model, and it has {draft.vocab_size} of them where that "
            f"has {target.vocab_size}."
        )
    for token in range(target.vocab_size):
        if draft.token_bytes(token) != target.token_bytes(token):
            raise ConfigError(
                f"{wish}: a draft model needs the tokens of the model, and its token {token} is "
                f"{draft.token_text(token)[:40]!r} where that's is {target.token_text(token)[:40]!r}."
            )


def check_goes_back(name: str, draft: CacheShape) -> None:
    """Raise ConfigError for a draft model with a state, which cannot go back to before a wrong guess."""
    if any(isinstance(group, RecurrentState) for group in draft.all_groups):
        raise ConfigError(
            f"speculative_config.model = {name!r} is not possible: it has a recurrent state, which cannot go back to "
            "before a wrong guess."
        )


def shared_memory(target: CacheShape, draft: CacheShape) -> tuple[Bytes, Bytes]:
    """What each gets of the memory that the target's pool alone would have: places for the same number of tokens."""
    whole = target.num_blocks * target.bytes_per_block
    own, other = _bytes_per_token(target), _bytes_per_token(draft)
    given = int(whole * other / (own + other))
    return Bytes(whole - given), Bytes(given)


def _bytes_per_token(shape: CacheShape) -> float:
    """If every group of layers keeps every token."""
    return sum(shape.bytes_per_block / group.block_tokens for group in shape.all_groups)
