"""Answers as JSON, cursors of lists, and entity tags."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from http import HTTPStatus

from pydantic_core import to_json
from starlette.responses import Response

from energyopt.core.errors import UsageError


class BadCursorError(UsageError):
    """A cursor that no page of ours gave out."""


def answer(document: object, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    """``document`` as JSON. A number that is not finite is the text "Infinity", "-Infinity" or "NaN"."""
    return answer_json(to_json(document, inf_nan_mode="strings"), status, headers)


def answer_json(content: bytes, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    """What is JSON already, with the headers that every answer has."""
    kept = {"cache-control": "no-store", **(headers or {})}
    return Response(content, status, kept, media_type="application/json")


def make_cursor(kind: str, position: object) -> str:
    """Where a list goes on, as text that means nothing to a client. ``kind`` binds it to its list and order."""
    return base64.urlsafe_b64encode(json.dumps([kind, position]).encode()).decode().rstrip("=")


def read_cursor(kind: str, cursor: str, size: int = 1) -> list[float | int | None]:
    """The position, of ``size`` numbers. Raises BadCursorError for what ``make_cursor`` did not make for this list."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found, position = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        numbers = [None if one is None else (one if isinstance(one, int) else float(one)) for one in position]
    except (ValueError, TypeError, RecursionError) as error:
        raise BadCursorError("The cursor is not one that a page of this list gave out.") from error
    if found != kind or len(numbers) != size or any(isinstance(one, int) and not 0 <= one < 2**62 for one in numbers):
        raise BadCursorError("The cursor belongs to another list, or to another order of this one.")
    return numbers


def etag(revision: int) -> str:
    """The strong tag of what may be changed of a study (budget and labels); its progress does not count."""
    return f'"r{revision}"'


def revision_of(tag: str) -> int:
    """Raises UsageError for a tag that is none of ours."""
    text = tag.strip().strip('"').removeprefix("r")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"If-Match = {tag[:60]!r} is not the ETag of a study.")
    return int(text)
