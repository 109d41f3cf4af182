"""Which header lines pass a proxy: all but those that speak of one connection (RFC 9110, 7.6.1)."""

from __future__ import annotations

from collections.abc import Iterable

Header = tuple[bytes, bytes]
"""A line's name in lower case, and its value as it was sent."""

HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
_OURS = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
"""What the router says itself on the way to a backend."""


def _named(headers: Iterable[Header]) -> set[bytes]:
    """Further names that ``Connection`` lists as its own."""
    return {token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")}


def onward(headers: list[Header], *, authorization: bytes | None, strip_key: bool) -> list[Header]:
    """A client's lines for a backend. ``authorization`` replaces the client's; ``strip_key`` keeps it here."""
    drop = _OURS | _named(headers)
    if authorization is not None or strip_key:
        drop = drop | {b"authorization"}
    kept = [line for line in headers if line[0] not in drop]
    if authorization is not None:
        kept.append((b"authorization", authorization))
    return kept


def back(headers: list[Header]) -> list[Header]:
    """A backend's lines for the client, its own content-length included."""
    drop = HOP_BY_HOP | _named(headers)
    return [line for line in headers if line[0] not in drop]


def value_of(headers: Iterable[Header], name: bytes) -> bytes | None:
    """The first line of that name."""
    return next((value for key, value in headers if key == name), None)
