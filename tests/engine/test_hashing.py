"""Block hashes: stable, chained, and different whenever what they name differs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.errors import ConfigError
from engine.kv.hashing import DIGEST_BYTES, BlockHasher

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def hashes(tokens: list[int], block_tokens: int = 4, salt: bytes = b"") -> list[bytes]:
    result: list[bytes] = []
    BlockHasher(block_tokens, salt=salt).extend(result, tokens)
    return result


@given(TOKENS, st.integers(1, 9))
def test_only_full_blocks_are_hashed(tokens: list[int], size: int) -> None:
    names = hashes(tokens, size)
    assert len(names) == len(tokens) // size
    assert all(len(one) == DIGEST_BYTES for one in names)


@given(TOKENS, st.integers(0, 10))
def test_extending_in_pieces_equals_hashing_at_once(tokens: list[int], blocks: int) -> None:
    first = hashes(tokens[: blocks * 4])
    BlockHasher(4).extend(first, tokens[len(first) * 4 :])
    assert first == hashes(tokens)


@given(TOKENS, TOKENS)
def test_hashes_agree_exactly_as_far_as_the_tokens_do(left: list[int], right: list[int]) -> None:
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    pairs = zip(hashes(left), hashes(right), strict=False)
    assert sum(a == b for a, b in pairs) == min(common // 4, len(left) // 4, len(right) // 4)


def test_salt_and_block_size_separate_caches() -> None:
    tokens = list(range(16))
    names = {hashes(tokens)[0], hashes(tokens, salt=b"tenant")[0], hashes(tokens, 2)[1], hashes(tokens, 8)[0]}
    assert len(names) == 4


def test_recorded_value_holds_in_every_release() -> None:
    # A cache on disk outlives the process that wrote it: changing the function must be a decision, not an accident.
    assert hashes([1, 2, 3, 4, 5, 6, 7, 2**32 - 1])[-1].hex() == RECORDED


RECORDED = "a90270ac32dde8b994176ff85aad1a42"


def test_the_same_in_other_processes_whatever_their_hash_seed() -> None:
    program = (
        "from engine.kv.hashing import BlockHasher\n"
        "h = []; BlockHasher(4).extend(h, [1, 2, 3, 4, 5, 6, 7, 2**32 - 1]); print(h[-1].hex())"
    )
    for seed in ("0", "42"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.strip() == RECORDED


def test_block_size_is_checked() -> None:
    with pytest.raises(ConfigError, match="block_tokens = 0"):
        BlockHasher(0)
