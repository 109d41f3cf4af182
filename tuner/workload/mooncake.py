"""Mooncake JSONL: ``timestamp`` ms, ``input_length``, ``output_length``, ``hash_ids`` (global, 512-token blocks).

The extended form that load generators read is understood too: ``session_id`` (rows that share one are turns of a
session, each row only what it adds after the earlier turns and their live answers), ``delay`` ms instead of a
timestamp, ``text_input`` or ``messages`` instead of ``input_length`` (``messages`` are complete prompts).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from energyopt.core.units import Seconds

from .chain import Interner, SessionChain
from .rows import MAX_SECONDS, BadRowError, Row, Skipping, lines_of, parse_json
from .trace import DERIVED_IDS, Agent, Call, Timed, Trace, TraceSession

BLOCK_TOKENS = 512
_CONTENT = ("input_length", "text_input", "messages")


class _Growing:
    """One session while its rows come in.

    ``history`` counts the tokens of its rows and answers so far, None once one of them is unknown; ``hashed``: every
    row so far had block ids.
    """

    def __init__(self, name: str, arrival: Seconds | None, chain: SessionChain) -> None:
        self.name, self.arrival, self.chain = name, arrival, chain
        self.calls: list[Call] = []
        self.history: int | None = 0
        self.hashed = True

    def session(self) -> TraceSession:
        return TraceSession(self.name, (Agent("root", tuple(self.calls)),), self.arrival)


def read_mooncake(path: Path, *, block_tokens: int = BLOCK_TOKENS, skip_bad: bool = False) -> Trace:
    """The trace in ``path``. Raises ConfigError for an unreadable file and for a bad row, unless ``skip_bad``."""
    skipping, interner = Skipping(skip_bad), Interner()
    sessions: dict[str, _Growing] = {}
    for line, text in lines_of(path):
        where = f"{path.name} line {line}"
        skipping.attempt(lambda: _take(Row(parse_json(text, where), where), sessions, block_tokens, interner))  # noqa: B023
    found = [growing.session() for growing in sessions.values()]
    if all(session.arrival is not None for session in found):
        found.sort(key=lambda session: session.arrival or 0.0)
    return Trace(path.stem, tuple(found), block_tokens, tuple(skipping.skipped))


def _take(row: Row, sessions: dict[str, _Growing], block: int, interner: Interner) -> None:
    """Check the whole row first, then add it: a bad row leaves no trace."""
    given = row.optional_text("session_id")
    name = f"row-{len(sessions)}" if given is None else given
    growing = sessions.get(name)
    if growing is not None and given is None:
        raise BadRowError(f"{row.where}: the id {name!r} of a row without 'session_id' is taken by an earlier row.")
    stamp = row.optional_number("timestamp", high=MAX_SECONDS * 1e3)
    delay = row.optional_number("delay", high=MAX_SECONDS * 1e3)
    start = _start(row, growing, stamp)
    call = _content(row, block)
    call = replace(
        call,
        output_tokens=row.count("output_length") if "output_length" in row else None,
        start=start,
        think_time=None if delay is None else Seconds(delay / 1e3),
    )
    if growing is None:
        arrival = None if stamp is None else Seconds(stamp / 1e3)
        growing = sessions[name] = _Growing(name, arrival, SessionChain(block, interner, name))
    growing.calls.append(_grown(growing, call))


def _start(row: Row, growing: _Growing | None, stamp: float | None) -> Seconds | None:
    """The offset in the session; turns of a session cannot run backward."""
    if stamp is None or (growing is not None and growing.arrival is None):
        return None
    if growing is None or growing.arrival is None:
        return Seconds(0.0)
    start = round(stamp - growing.arrival * 1e3, 3) / 1e3
    last = next((call.start for call in reversed(growing.calls) if call.start is not None), 0.0)
    if start < last:
        raise row.bad("timestamp", f"at least that of the session's previous row, {(growing.arrival + last) * 1e3:g}")
    return Seconds(start)


def _content(row: Row, block: int) -> Call:
    """What the row adds, as it stands."""
    if sum(field in row for field in _CONTENT) != 1:
        raise BadRowError(f"{row.where}: expected exactly one of the fields {', '.join(_CONTENT)}.")
    if "messages" in row:
        return Call(None, None, messages=tuple(row.objects("messages")))
    if "text_input" in row:
        return Call(None, None, messages=({"role": "user", "content": row.text("text_input")},), continues=True)
    tokens, ids = row.count("input_length"), row.ids("hash_ids", DERIVED_IDS)
    expected = -(-tokens // block)
    if ids and len(ids) != expected:
        raise row.bad("hash_ids", f"{expected} ids for {tokens} tokens in blocks of {block}")
    return Call(tokens, None, added_tokens=tokens, added_blocks=ids, continues=True)


def _grown(growing: _Growing, call: Call) -> Call:
    """The call with its whole prompt: what the row adds, behind the session's earlier rows and answers."""
    follows, history, added = bool(growing.calls), growing.history, call.added_tokens
    growing.hashed = growing.hashed and bool(call.added_blocks)
    whole = None if history is None or added is None else history + added
    blocks: tuple[int, ...] = ()
    if growing.hashed and whole is not None and added is not None:
        if follows:
            growing.chain.answer(growing.calls[-1].output_tokens or 0)
        blocks = growing.chain.add(added, call.added_blocks)
    growing.history = None if whole is None or call.output_tokens is None else whole + call.output_tokens
    return replace(call, input_tokens=whole, blocks=blocks, continues=follows and call.continues)


def write_mooncake(trace: Trace, path: Path) -> None:
    """Write ``trace`` so that ``read_mooncake`` reads the same from it, as far as the format can say it.

    Sessions whose calls are complete prompts with block ids (agentic traces) become rows without a ``session_id``,
    because a reader would append each to the ones before; their think times are then in the timestamps only.
    """
    rows = [_row(trace, timed) for timed in trace.timeline()]
    text = "".join(json.dumps(row, separators=(", ", ": ")) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def _row(trace: Trace, timed: Timed) -> dict[str, object]:
    session, call = trace.sessions[timed.session], timed.call
    row: dict[str, object] = {}
    if timed.time is not None:
        row["timestamp"] = milliseconds(timed.time)
    elif call.think_time is not None:
        row["delay"] = milliseconds(call.think_time)
    if call.messages:
        row["messages"] = list(call.messages)
    else:
        grows = call.continues or call.added_tokens is not None
        row["input_length"] = call.added_tokens if grows else call.input_tokens
        ids = call.added_blocks if grows else call.blocks
        if ids:
            row["hash_ids"] = list(ids)
    if call.output_tokens is not None:
        row["output_length"] = call.output_tokens
    if call.messages or call.continues or call.added_tokens is not None:
        row["session_id"] = session.id
    return row


def milliseconds(seconds: float) -> int | float:
    """Whole milliseconds as an integer, others to the microsecond."""
    value = round(seconds * 1e3, 3)
    return int(value) if value.is_integer() else value
