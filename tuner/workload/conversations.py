"""Recorded conversations with their text: OpenAI ``messages`` JSONL and ShareGPT.

A conversation becomes one session. Each assistant message with text is an answer that is asked for again; what stands
before it is added to the history of the calls before. Token counts are unknown until somebody tokenizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from energyopt.core.errors import ConfigError
from energyopt.core.files import read_bounded

from .rows import BadRowError, Row, Skipping, lines_of, parse_json
from .trace import Agent, Call, Message, Trace, TraceSession

MAX_SHAREGPT_BYTES = 2**30
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
}


def read_messages(path: Path, *, skip_bad: bool = False) -> Trace:
    """One conversation a line: ``{"messages": [{"role": ..., "content": ...}, ...]}``. Raises ConfigError."""
    skipping = Skipping(skip_bad)
    sessions: list[TraceSession] = []
    for line, text in lines_of(path):
        where = f"{path.name} line {line}"
        session = skipping.attempt(lambda: _openai(Row(parse_json(text, where), where), len(sessions)))  # noqa: B023
        if session is not None:
            sessions.append(session)
    return Trace(path.stem, tuple(sessions), None, tuple(skipping.skipped))


def read_sharegpt(path: Path, *, skip_bad: bool = False) -> Trace:
    """A JSON array, or JSONL, of ``{"id", "conversations": [{"from": "human", "value": ...}, ...]}``."""
    skipping = Skipping(skip_bad)
    sessions: list[TraceSession] = []
    for where, value in _sharegpt_rows(path, skipping):
        session = skipping.attempt(lambda: _sharegpt(Row(value, where), len(sessions)))  # noqa: B023
        if session is not None:
            sessions.append(session)
    return Trace(path.stem, tuple(sessions), None, tuple(skipping.skipped))


def _sharegpt_rows(path: Path, skipping: Skipping) -> Iterator[tuple[str, object]]:
    with_array = next(lines_of(path), (0, b""))[1].lstrip().startswith(b"[")
    if with_array:
        document = parse_json(read_bounded(path, MAX_SHAREGPT_BYTES), path.name)
        if not isinstance(document, list):
            raise ConfigError(f"{path.name}: expected a JSON array of conversations.")
        yield from ((f"{path.name} entry {index}", value) for index, value in enumerate(document))
        return
    for line, text in lines_of(path):
        where = f"{path.name} line {line}"
        value = skipping.attempt(lambda: parse_json(text, where))  # noqa: B023
        if value is not None:
            yield where, value


def _openai(row: Row, number: int) -> TraceSession:
    messages = row.objects("messages")
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise BadRowError(f"{row.where}: messages[{index}].role is not a text such as 'user'.")
    return _session(row.optional_text("id"), number, messages, row.where)


def _sharegpt(row: Row, number: int) -> TraceSession:
    messages: list[Message] = []
    for index, entry in enumerate(row.objects("conversations")):
        role, text = _ROLES.get(str(entry.get("from")).lower()), entry.get("value")
        if role is None or not isinstance(text, str):
            raise BadRowError(
                f"{row.where}: conversations[{index}] needs 'from' (one of {', '.join(_ROLES)}) and a text in 'value'."
            )
        messages.append({"role": role, "content": text})
    return _session(row.optional_text("id"), number, messages, row.where)


def _session(name: str | None, number: int, messages: Sequence[Message], where: str) -> TraceSession:
    calls = tuple(calls_of(messages))
    if not calls:
        raise BadRowError(f"{where}: the conversation asks nothing; expected a message that is not the assistant's.")
    return TraceSession(f"row-{number}" if name is None else name, (Agent("root", calls),))


def calls_of(messages: Sequence[Message]) -> Iterator[Call]:
    """The calls of a conversation. An assistant message in front or without text (a tool call) is history."""
    waiting: list[Message] = []
    first = True
    for message in messages:
        answer = message.get("content") if message.get("role") == "assistant" else None
        if isinstance(answer, str) and answer and waiting:
            yield Call(None, None, messages=tuple(waiting), answer=answer, continues=not first)
            waiting, first = [], False
        else:
            waiting.append(message)
    if any(message.get("role") != "assistant" for message in waiting):
        yield Call(None, None, messages=tuple(waiting), continues=not first)


def messages_of(session: TraceSession) -> list[Message]:
    """The conversation that ``calls_of`` would read the root's calls from."""
    messages: list[Message] = []
    for call in session.root.calls:
        messages += call.messages
        if call.answer is not None:
            messages.append({"role": "assistant", "content": call.answer})
    return messages


def write_messages(trace: Trace, path: Path) -> None:
    """One conversation a line. Raises ConfigError for a trace without text."""
    rows = ({"id": session.id, "messages": messages_of(_with_text(session))} for session in trace.sessions)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_sharegpt(trace: Trace, path: Path) -> None:
    """A JSON array. Raises ConfigError for a trace without text, or with content that is not plain text."""
    path.write_text(json.dumps([_conversation(session) for session in trace.sessions], indent=1), encoding="utf-8")


def _conversation(session: TraceSession) -> Mapping[str, object]:
    names = {"user": "human", "assistant": "gpt"}
    turns = []
    for message in messages_of(_with_text(session)):
        role, text = str(message.get("role")), message.get("content")
        if not isinstance(text, str) or role not in _ROLES.values():
            raise ConfigError(f"Session {session.id!r} has a {role!r} message that ShareGPT's form cannot hold.")
        turns.append({"from": names.get(role, role), "value": text})
    return {"id": session.id, "conversations": turns}


def _with_text(session: TraceSession) -> TraceSession:
    if not all(call.messages for call in session.calls):
        raise ConfigError(f"Session {session.id!r} has lengths but no text; it cannot be written as messages.")
    return session
