"""What the double remembers, in the plainest form: dictionaries of JSON by uid."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from .replies import Json


@dataclass
class State:
    """Everything a server keeps. ``boards`` holds for each uid the newest version and its ``history``."""

    version: str
    plugins: dict[str, Json]
    folders: dict[str, Json] = field(default_factory=dict)
    boards: dict[str, Json] = field(default_factory=dict)
    sources: dict[str, Json] = field(default_factory=dict)
    groups: dict[tuple[str, str], Json] = field(default_factory=dict)
    rules: dict[str, Json] = field(default_factory=dict)
    mute_timings: dict[str, Json] = field(default_factory=dict)
    permissions: dict[str, list[Json]] = field(default_factory=dict)
    teams: dict[int, Json] = field(default_factory=dict)
    users: dict[int, Json] = field(default_factory=lambda: {1: {"id": 1, "login": "admin", "name": "admin"}})
    preferences: Json = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(2))

    def number(self) -> int:
        return next(self.ids)


def fresh_uid() -> str:
    return uuid.uuid4().hex[:14]


def slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
