"""Groups of layers as plain values, for what ranks and engine tell each other of their pools."""

from __future__ import annotations

from dataclasses import asdict

from energyopt.core.errors import EngineError

from ..kv.layout import ChunkedLocal, FullAttention, GroupSpec, RecurrentState, SlidingWindow

_KINDS: dict[str, type[GroupSpec]] = {
    kind.__name__: kind for kind in (FullAttention, SlidingWindow, ChunkedLocal, RecurrentState)
}


def pack_groups(groups: tuple[GroupSpec, ...]) -> list[dict[str, object]]:
    """Each group's kind and numbers; which layers it has is the rank's own business."""
    return [{"kind": type(group).__name__, **asdict(group), "layers": ()} for group in groups]


def unpack_groups(packed: object) -> tuple[GroupSpec, ...]:
    """What ``pack_groups`` packed. Raises EngineError for what is none."""
    found: list[GroupSpec] = []
    for one in packed if isinstance(packed, list) else ():
        values = {**one, "layers": ()}
        kind = _KINDS.get(str(values.pop("kind", "")))
        if kind is None:
            raise EngineError(f"A rank's pool has a group {one!r}, which is not known.")
        found.append(kind(**values))
    return tuple(found)
