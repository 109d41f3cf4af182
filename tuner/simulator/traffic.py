"""Workloads as simulated requests: sessions of a core Workload, and rows of a Mooncake trace.

Text becomes token ids by cutting it into pieces of four characters, so that equal beginnings stay equal and a prefix
cache sees what a real tokenizer would show it, near enough for its block hashes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from energyopt.core.errors import ConfigError, NotFoundError
from energyopt.core.records import RequestRecord
from energyopt.core.workload import Session, Workload
from engine.kv.hashing import DIGEST_BYTES

from .prompts import NamedPrompt
from .replica import SimRequest
from .runner import TOKEN

CHARACTERS = 4
"""Characters of one token of English text (a common rule of thumb)."""
TRACE_BLOCK = 512
_MAX_LINE = 1 << 20


def tokens_of(text: str) -> tuple[int, ...]:
    """Stable ids of a text's pieces."""
    pieces = range(0, len(text), CHARACTERS)
    return tuple(zlib.crc32(text[start : start + CHARACTERS].encode()) >> 1 for start in pieces)


class SessionLoad:
    """Turns of sessions as requests: a turn follows when the one before has its answer and the think time has passed.

    Sessions with an arrival start then; the others start when one of ``workload.concurrency`` lanes is free, again and
    again, each round with a salt of its own.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._running: dict[str, tuple[Session, int, tuple[int, ...]]] = {}
        self._next = 0

    def start(self) -> list[SimRequest]:
        """The first request of every lane, or of every session with an arrival."""
        open_loop = [session for session in self._workload.sessions if session.arrival is not None]
        if open_loop:
            return [self._turn(session.id, session, 0, (), float(session.arrival or 0.0)) for session in open_loop]
        return [self._lane(0.0) for _ in range(self._workload.concurrency)]

    def follow(self, record: RequestRecord) -> Sequence[SimRequest]:
        """What follows from a finished request."""
        key = record.session or record.request_id
        session, turn, history = self._running.pop(key)
        if turn + 1 < len(session.turns):
            answer = history + (TOKEN.token,) * record.output_tokens
            return [self._turn(key, session, turn + 1, answer, float(record.end))]
        return [] if session.arrival is not None else [self._lane(float(record.end))]

    def _lane(self, now: float) -> SimRequest:
        sessions = self._workload.sessions
        session, turn = sessions[self._next % len(sessions)], self._next // len(sessions)
        self._next += 1
        salt = () if turn == 0 else tokens_of(f"round {turn}")
        return self._turn(f"{session.id}/{turn}", session, 0, salt, now)

    def _turn(self, key: str, session: Session, index: int, history: tuple[int, ...], now: float) -> SimRequest:
        turn = session.turns[index]
        system = tokens_of(session.system or "") if index == 0 else ()
        prompt = system + history + tokens_of(turn.text)
        self._running[key] = (session, index, prompt)
        return SimRequest(f"{key}#{index}", now + turn.think_time, prompt or (1,), turn.output_tokens, key)


def mooncake_requests(
    path: Path, *, limit: int | None = None, repeat: int = 1, together: bool = False, block_tokens: int | None = None
) -> Iterator[SimRequest]:
    """Rows of a Mooncake trace in order of time, ``repeat`` times over with fresh blocks each time.

    The rounds follow one another, or run ``together``: as many times the load, none of it shared. A hash id stands for
    512 tokens; ids become tokens that no other id shares. With ``block_tokens`` (which must divide 512) the engine's
    blocks are named after the ids instead of hashed: the same hits for much less time. Raises NotFoundError,
    ConfigError.
    """
    if block_tokens is not None and TRACE_BLOCK % block_tokens:
        raise ConfigError(f"block_tokens = {block_tokens} is not allowed: it must divide {TRACE_BLOCK}.")
    rows = _trace(path, limit)
    span = 0.0 if together else max((row[0] for row in rows), default=0.0) + 1.0
    top = 1 + max((block for row in rows for block in row[3]), default=0)
    order = ((row, again) for row in rows for again in range(repeat)) if together else _rounds(rows, repeat)
    for number, ((arrival, prompt, output, blocks), again) in enumerate(order):
        ids = [block + again * top for block in blocks]
        name, when, wanted = f"{again}/{number}", arrival + again * span, max(1, output)
        if block_tokens is None:
            yield SimRequest(name, when, _expand(prompt, ids), wanted)
        else:
            names = _names(prompt, ids, block_tokens)
            yield SimRequest(name, when, _unnamed(prompt, ids, len(names) * block_tokens), wanted, names=names)


_Row = tuple[float, int, int, list[int]]


def _rounds(rows: Sequence[_Row], repeat: int) -> Iterator[tuple[_Row, int]]:
    return ((row, again) for again in range(repeat) for row in rows)


def _expand(prompt: int, blocks: Sequence[int]) -> tuple[int, ...]:
    """``prompt`` tokens, of which each block of 512 is told apart by its id alone."""
    tokens: list[int] = []
    for block in blocks:
        tokens += [block + 1] * TRACE_BLOCK
    missing = prompt - len(tokens)
    return tuple(tokens[:prompt]) if missing <= 0 else tuple(tokens) + (0,) * missing


def _unnamed(prompt: int, blocks: Sequence[int], named: int) -> NamedPrompt:
    """The tokens behind the ``named`` ones, as ``_expand`` has them."""
    covered = min(prompt, len(blocks) * TRACE_BLOCK)
    rest = (blocks[named // TRACE_BLOCK] + 1,) * (covered - named) if covered > named else ()
    return NamedPrompt(named, rest + (0,) * (prompt - covered))


def _names(prompt: int, blocks: Sequence[int], size: int) -> tuple[bytes, ...]:
    """Names of the full blocks of ``size`` tokens that the ids cover: their id and their place in it."""
    parts = range(TRACE_BLOCK // size)
    names = [(block << 16 | part).to_bytes(DIGEST_BYTES, "little") for block in blocks for part in parts]
    return tuple(names[: min(prompt, len(blocks) * TRACE_BLOCK) // size])


def _trace(path: Path, limit: int | None) -> list[_Row]:
    rows: list[_Row] = []
    try:
        with path.open(encoding="utf-8") as file:
            while limit is None or len(rows) < limit:
                line = file.readline(_MAX_LINE)
                if not line:
                    break
                row = json.loads(line)
                blocks = [int(block) for block in row["hash_ids"]]
                rows.append((row["timestamp"] / 1e3, int(row["input_length"]), int(row["output_length"]), blocks))
    except OSError as error:
        raise NotFoundError(f"The trace {path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"Line {len(rows) + 1} of the trace {path} is not a Mooncake request.") from error
    return rows
