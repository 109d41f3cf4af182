"""Agentic sessions in the "weka" form of AgentX: one JSON object a session, sub-agents inside, 64-token blocks.

Block ids are local to their session; session ``n`` of a trace gets the ids from ``n`` x 2**32 on, so that they are
global here and the recorded ones can be written back. Prompts are complete: each ``hash_ids`` covers the whole of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from energyopt.core.errors import ConfigError
from energyopt.core.files import read_bounded
from energyopt.core.units import Seconds

from .rows import BadRowError, Row, Skipping, parse_json
from .trace import Agent, Call, Trace, TraceSession

BLOCK_TOKENS = 64
MAX_SESSION_BYTES = 256 * 2**20
MAX_SESSIONS = 2**16 - 1
_SCOPE = 1 << 32


def read_weka(path: Path, *, skip_bad: bool = False) -> Trace:
    """The sessions of one file, or of all ``*.json`` files in a folder, in the order of their names.

    Raises ConfigError for what cannot be read and, unless ``skip_bad``, for the first bad request; also for sessions
    with different block sizes, which are two traces.
    """
    paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not paths or len(paths) > MAX_SESSIONS:
        raise ConfigError(f"{path} holds {len(paths)} *.json files; expected 1 to {MAX_SESSIONS} sessions.")
    skipping = Skipping(skip_bad)
    sessions: list[TraceSession] = []
    sizes: set[int] = set()
    for one in paths:
        found = skipping.attempt(lambda: _session(one, len(sessions), skipping))  # noqa: B023
        if found is not None:
            sessions.append(found[0])
            sizes.add(found[1])
    if len(sizes) > 1:
        raise ConfigError(f"{path} mixes block sizes {sorted(sizes)}; put each into a folder of its own.")
    return Trace(path.stem, tuple(sessions), sizes.pop() if sizes else BLOCK_TOKENS, tuple(skipping.skipped))


def _session(path: Path, number: int, skipping: Skipping) -> tuple[TraceSession, int]:
    row = Row(parse_json(read_bounded(path, MAX_SESSION_BYTES), path.name), path.name)
    block = row.count("block_size", 1, 2**16)
    scope = row.optional_text("hash_id_scope") or "local"
    if scope not in ("local", "global"):
        raise row.bad("hash_id_scope", "'local' or 'global'")
    reader = _AgentReader(block, number * _SCOPE if scope == "local" else 0, skipping)
    reader.read(row, "root", None, 0, Seconds(0.0))
    if not any(agent.calls for agent in reader.agents):
        raise row.bad("requests", "at least one request")
    return TraceSession(row.text("id"), tuple(reader.agents)), block


class _AgentReader:
    """Flattens nested requests into agents, a parent before its children."""

    def __init__(self, block: int, base: int, skipping: Skipping) -> None:
        self._block, self._base, self._skipping = block, base, skipping
        self.agents: list[Agent] = []

    def read(self, row: Row, name: str, parent: int | None, after: int, start: Seconds) -> None:
        """Add the agent of ``row`` and those below it; ``start`` is its offset in the session."""
        place = len(self.agents)
        self.agents.append(Agent(name, ()))
        calls: list[Call] = []
        for index, item in enumerate(row.items("requests")):
            where = f"{row.where} requests[{index}]"
            call = self._skipping.attempt(lambda: self._item(Row(item, where), place, len(calls), start))  # noqa: B023
            if call is not None:
                calls.append(call)
        milliseconds = row.optional_number("duration_ms", high=1e13)
        self.agents[place] = Agent(
            id=name,
            calls=tuple(calls),
            parent=parent,
            after=after,
            start=start,
            duration=None if milliseconds is None else Seconds(milliseconds / 1e3),
            kind=row.optional_text("subagent_type"),
            status=row.optional_text("status"),
            system_tokens=row.count("system_tokens") if "system_tokens" in row else 0,
            tool_tokens=row.count("tool_tokens") if "tool_tokens" in row else 0,
            tool_uses=row.count("tool_use_count") if "tool_use_count" in row else 0,
        )

    def _item(self, row: Row, parent: int, after: int, base: Seconds) -> Call | None:
        """A call, or None for a sub-agent, which is added on the way."""
        kind = row.value.get("type")
        start = Seconds(round(base + row.number("t"), 6))
        if kind == "subagent":
            if parent != 0:
                raise BadRowError(f"{row.where}: a sub-agent within a sub-agent is not part of this format.")
            place = len(self.agents)
            try:
                self.read(row, row.text("agent_id"), parent, after, start)
            except BadRowError:
                del self.agents[place:]
                raise
            return None
        if kind not in ("n", "s"):
            raise row.bad("type", "'n', 's' or 'subagent'")
        return self._call(row, start, streamed=kind == "s")

    def _call(self, row: Row, start: Seconds, *, streamed: bool) -> Call:
        tokens, ids = row.count("in"), row.ids("hash_ids", _SCOPE)
        whole, partial = divmod(tokens, self._block)
        if ids and not whole <= len(ids) <= whole + bool(partial):
            raise row.bad("hash_ids", f"{whole} to {whole + bool(partial)} ids for {tokens} tokens of {self._block}")
        return Call(
            input_tokens=tokens,
            output_tokens=row.count("out"),
            blocks=tuple(self._base + name for name in ids),
            start=start,
            think_time=_seconds(row, "think_time"),
            server_time=_seconds(row, "api_time"),
            ttft=_seconds(row, "ttft"),
            model=row.optional_text("model"),
            streamed=streamed,
            input_types=row.texts("input_types"),
            output_types=row.texts("output_types"),
            stop=row.optional_text("stop"),
        )


def _seconds(row: Row, field: str) -> Seconds | None:
    value = row.optional_number(field)
    return None if value is None else Seconds(value)


def write_weka(trace: Trace, folder: Path) -> list[Path]:
    """One file a session under ``folder``; reading them back gives the same trace where ids are local.

    Raises ConfigError for calls without token counts, deeper trees than the format has, or names that are not files'.
    """
    folder.mkdir(parents=True, exist_ok=True)
    width = len(str(len(trace.sessions)))
    paths = []
    for number, session in enumerate(trace.sessions):
        path = folder / f"{number:0{width}d}_{_file_name(session.id)}.json"
        path.write_text(json.dumps(_document(session, trace.block_tokens or BLOCK_TOKENS)) + "\n", encoding="utf-8")
        paths.append(path)
    return paths


def _file_name(name: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "_" for letter in name)[:80]


def _document(session: TraceSession, block: int) -> dict[str, object]:
    bases = {name // _SCOPE for call in session.calls for name in call.blocks}
    return {
        "id": session.id,
        "models": _models(session.calls),
        "block_size": block,
        "hash_id_scope": "local" if len(bases) <= 1 else "global",
        "tool_tokens": session.root.tool_tokens,
        "system_tokens": session.root.system_tokens,
        "requests": _requests(session, 0, 0.0, local=len(bases) <= 1),
    }


def _requests(session: TraceSession, place: int, base: float, *, local: bool) -> list[Mapping[str, object]]:
    """The agent's calls with its sub-agents before the call they stood before."""
    agent, items = session.agents[place], list[Mapping[str, object]]()
    children = session.children(place)
    if children and place:
        raise ConfigError(f"Session {session.id!r} has agents below a sub-agent; the weka form has one level.")
    for index in range(len(agent.calls) + 1):
        items += [_subagent(session, child, local) for child in children if session.agents[child].after == index]
        if index < len(agent.calls):
            items.append(_request(agent.calls[index], base, local))
    return items


def _subagent(session: TraceSession, place: int, local: bool) -> Mapping[str, object]:
    agent = session.agents[place]
    return {
        "t": agent.start or 0.0,
        "type": "subagent",
        "agent_id": agent.id,
        **({} if agent.kind is None else {"subagent_type": agent.kind}),
        **({} if agent.duration is None else {"duration_ms": round(agent.duration * 1e3, 3)}),
        "total_tokens": 0,
        "tool_use_count": agent.tool_uses,
        **({} if agent.status is None else {"status": agent.status}),
        "requests": _requests(session, place, agent.start or 0.0, local=local),
        "models": _models(agent.calls),
        "tool_tokens": agent.tool_tokens,
        "system_tokens": agent.system_tokens,
    }


def _request(call: Call, base: float, local: bool) -> Mapping[str, object]:
    if call.input_tokens is None or call.output_tokens is None:
        raise ConfigError("The weka form needs the token counts of every call; tokenize the texts first.")
    row: dict[str, object] = {
        "t": round((call.start or 0.0) - base, 6),
        "type": "s" if call.streamed else "n",
        "model": call.model,
        "in": call.input_tokens,
        "out": call.output_tokens,
        "hash_ids": [name % _SCOPE if local else name for name in call.blocks],
        "input_types": list(call.input_types),
        "output_types": list(call.output_types),
        "stop": call.stop,
        "api_time": call.server_time,
        "think_time": call.think_time,
        "ttft": call.ttft,
    }
    return {name: value for name, value in row.items() if value is not None}


def _models(calls: Iterable[Call]) -> list[str]:
    return list(dict.fromkeys(call.model for call in calls if call.model is not None))
