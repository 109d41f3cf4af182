"""Knobs that are more than one field: a layout, the KV tiers, speculation, each as a whole and as one word.

Every scalar field of a Deployment is a knob by its path alone. A part that only makes sense as a whole is one by a row
of ``KINDS``: how it is spelled as a value, and what a value means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energyopt.core.config import ParallelLayout, SpeculativeConfig, TierConfig, parse_config
from energyopt.core.errors import ConfigError
from energyopt.core.study import Value
from energyopt.core.units import parse_bytes

_AXES = tuple(ParallelLayout.model_fields)
_LAYOUT_PART = re.compile(r"([a-z]+)([1-9]\d{0,5})")
_TIER = re.compile(r"([a-z]+):([^/@\s]+)(/rank)?(?:@(\S+))?")
_GIB = 2**30
_SPECULATION = re.compile(r"(ngram):(\d{1,2})(?::(\d{1,2})-(\d{1,2}))?(:fixed)?")
NO_TIERS = "none"
NO_SPECULATION = "none"


@dataclass(frozen=True, slots=True)
class Kind:
    """One part of a pool that is a single value to a search.

    ``spell`` makes the value of the dumped part, ``parse`` the dumped part of the value; ``form`` is an example. What
    ``parse`` does not understand raises ConfigError.
    """

    spell: Callable[[Any], Value]
    parse: Callable[[Value], Any]
    form: str


def spell_layout(layout: Mapping[str, int]) -> str:
    """``tp4-pp2``: the axes that are not 1; ``tp1`` where all are."""
    return "-".join(f"{axis}{layout[axis]}" for axis in _AXES if layout[axis] != 1) or "tp1"


def parse_layout(value: Value) -> dict[str, int]:
    """The sizes that a word such as ``tp8-ep8`` names; axes it leaves out are 1."""
    sizes = dict.fromkeys(_AXES, 1)
    named: set[str] = set()
    for part in str(value).split("-"):
        match = _LAYOUT_PART.fullmatch(part)
        if match is None or match.group(1) not in sizes or match.group(1) in named:
            raise ConfigError(f"{value!r} is no layout: write sizes of {', '.join(_AXES)}, such as tp4-pp2.")
        named.add(match.group(1))
        sizes[match.group(1)] = int(match.group(2))
    return sizes


def spell_tiers(tiers: Sequence[Mapping[str, Any]]) -> str:
    """``host:16GiB+disk:100GiB/rank@/data``, or ``none``."""
    return "+".join(_spell_tier(tier) for tier in tiers) or NO_TIERS


def parse_tiers(value: Value) -> tuple[dict[str, Any], ...]:
    """The tiers that a word names, in its order. A size is per host unless ``/rank`` follows."""
    if value == NO_TIERS:
        return ()
    return tuple(_parse_tier(word, value) for word in str(value).split("+"))


def _spell_tier(tier: Mapping[str, Any]) -> str:
    per_rank = tier["bytes_per_host"] is None
    size = tier["bytes_per_rank"] if per_rank else tier["bytes_per_host"]
    words = f"{size // _GIB}GiB" if size % _GIB == 0 else f"{size}B"
    return f"{tier['kind']}:{words}{'/rank' if per_rank else ''}{'' if tier['path'] is None else '@' + tier['path']}"


def _parse_tier(word: str, value: Value) -> dict[str, Any]:
    match = _TIER.fullmatch(word)
    if match is None:
        raise ConfigError(f"{value!r} is no list of tiers: write {NO_TIERS}, or host:16GiB+disk:100GiB@/folder.")
    kind, size, per_rank, path = match.groups()
    name, other = ("bytes_per_rank", "bytes_per_host") if per_rank else ("bytes_per_host", "bytes_per_rank")
    tier = {"kind": kind, name: parse_bytes(size), other: None, "path": path}
    parse_config(TierConfig, tier)
    return tier


def spell_speculation(part: Mapping[str, Any] | None) -> str:
    """``ngram:4``, with ``:2-4`` behind it for other lengths to look up and ``:fixed`` for a depth that stays."""
    if part is None:
        return NO_SPECULATION
    usual = SpeculativeConfig().model_dump()
    words = [part["method"], str(part["num_speculative_tokens"])]
    lengths = (part["prompt_lookup_min"], part["prompt_lookup_max"])
    if lengths != (usual["prompt_lookup_min"], usual["prompt_lookup_max"]):
        words.append(f"{lengths[0]}-{lengths[1]}")
    return ":".join([*words, *(() if part["adaptive"] else ("fixed",))])


def parse_speculation(value: Value) -> dict[str, Any] | None:
    """The part that a word such as ``ngram:4`` or ``ngram:4:2-3:fixed`` names; None for ``none``."""
    if value == NO_SPECULATION:
        return None
    match = _SPECULATION.fullmatch(str(value))
    if match is None:
        raise ConfigError(f"{value!r} is no speculation: write {NO_SPECULATION}, ngram:4, or ngram:4:2-4:fixed.")
    method, depth, least, most, fixed = match.groups()
    fields: dict[str, Any] = {"method": method, "num_speculative_tokens": int(depth), "adaptive": fixed is None}
    if least is not None:
        fields |= {"prompt_lookup_min": int(least), "prompt_lookup_max": int(most)}
    return parse_config(SpeculativeConfig, fields).model_dump()


KINDS: Mapping[str, Kind] = {
    "engine.layout": Kind(spell_layout, parse_layout, "tp4-pp2"),
    "engine.kv.tiers": Kind(spell_tiers, parse_tiers, "host:16GiB"),
    "engine.speculative_config": Kind(spell_speculation, parse_speculation, "ngram:4"),
}
"""By the path below a pool. A new kind of knob is one row here; nothing else knows of it."""


def kind_of(path: str) -> Kind | None:
    """The kind of the knob at ``path``; None for a scalar field."""
    return KINDS.get(path.partition(".")[2])
