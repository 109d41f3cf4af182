"""What guides an answer into a form: the wish as data, the guide that follows one answer, and who makes guides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from energyopt.core.errors import RequestError

GuideKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class GuideSpec:
    """A form that an answer must have, as plain data: equal wishes are equal, and hash alike.

    ``source`` is the JSON text of a schema, a regular expression, a JSON array of texts, or a grammar in the Lark
    dialect of llguidance; it is not used for ``json_object``. The form begins after the text ``after``,
    if there is one. ``field`` is where the client wrote it, for messages.
    """

    kind: GuideKind
    source: str = ""
    after: str = field(default="", kw_only=True)
    field: str = field(default="response_format", compare=False)


class GuideError(RequestError):
    """A form that cannot be followed: it does not parse, asks for something unknown, or is too large."""


class Guide(Protocol):
    """Follows one answer. It raises nothing once it exists: what goes wrong in it is said by ``failure``.

    Not thread-safe: the step loop's thread has it, except in ``fork``ed copies.
    """

    @property
    def finished(self) -> bool:
        """The answer is complete and nothing can follow."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the guide cannot go on, as a sentence; None while it can. It does not recover."""
        ...

    def allowed(self) -> bytes:
        """One bit per token id, the lowest first in each byte: which tokens may come next.

        At least one is set. End-of-text tokens are, where the answer may end.
        """
        ...

    def advance(self, token: int) -> None:
        """Take over the token that came. One that was not allowed makes the guide fail."""
        ...

    def fork(self) -> Guide:
        """A copy in the same state, which goes its own way."""
        ...


class GuideMaker(Protocol):
    """Makes guides for one tokenizer. Thread-safe."""

    def make(self, spec: GuideSpec) -> Guide:
        """A guide at the beginning of an answer; it may take a second. Raises GuideError."""
        ...
