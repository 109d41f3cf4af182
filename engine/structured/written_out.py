"""How long the repetitions of a form are when they are written out: the guide library writes literal ones out.

``a{4000000000}`` is thirteen characters, and a terminal that names another twice, which names another twice and so on,
is not much longer: either would cost minutes and gigabytes, beyond every limit that the library takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

MAX_REPEATED = 100_000
"""Signs that all repetitions of a form may come to: about a second of compiling."""

_MOST = 10**18
_COUNT = re.compile(r"\{\s*+([0-9]++)\s*+(?:,\s*+(?:[0-9]++\s*+)?+)?+\}|~\s*+([0-9]++)")
_DIGITS = 19
"""Of a number, after its zeros: as many make it more than ``_MOST``, and the rest, which may be long, is not read."""
_ESCAPED = re.compile(r"\\(?:[pPxuU]\{[^}]*\}|.)", re.DOTALL)
_TOKEN = re.compile(r"""//[^\n]*|"(?:\\.|[^"\\\n])*"?|/(?:\\.|[^/\\\n])+/?|%json|[A-Za-z_][A-Za-z_0-9]*|.""", re.DOTALL)
_RULE = re.compile(r"^[ \t]*[?!]?([A-Za-z_][A-Za-z_0-9]*)[^:\n]*:", re.MULTILINE)


class _Sizes:
    """Adds up the signs of an expression with groups and counts, as its parts are told in order."""

    def __init__(self) -> None:
        self.repeated = 0
        self._sums = [0]
        self._last = 0

    @property
    def whole(self) -> int:
        return sum(self._sums)

    def part(self, size: int) -> None:
        self._last = size
        self._sums[-1] += size

    def times(self, count: int) -> None:
        """The last part is repeated."""
        if count > 1:
            size = min(self._last * count, _MOST)
            self.repeated += size
            self._sums[-1] += size - self._last
            self._last = size

    def open(self) -> None:
        self._sums.append(0)
        self._last = 0

    def close(self) -> None:
        self.part(self._sums.pop() if len(self._sums) > 1 else 1)


def repeated_signs(expression: str) -> int:
    """Signs that the repetitions of a regular expression make, at the least count; 0 where nothing repeats.

    Groups count as long as all of their alternatives together. An expression that does not parse gets some number.
    """
    sizes, at = _Sizes(), 0
    while at < len(expression):
        sign, count = expression[at], _COUNT.match(expression, at)
        if count is not None and sign == "{":
            sizes.times(_least(count))
            at = count.end()
            continue
        if sign == "(":
            sizes.open()
        elif sign == ")":
            sizes.close()
        else:
            sizes.part(1)
        at = _end_of_sign(expression, at)
    return sizes.repeated


def texts_of(document: object) -> Iterator[str]:
    """Every text in a JSON document, keys included: where a schema may hold expressions."""
    waiting = [document]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, Sequence):
            waiting += one


def grammar_signs(grammar: str) -> int:
    """As ``repeated_signs``, of a grammar in Lark's dialect; a terminal that is named counts as long as it is.

    Raises ValueError for terminals that need themselves, and for a schema inside that is no JSON.
    """
    starts = [(found.end(), found.start(), found[1]) for found in _RULE.finditer(grammar)]
    ends = [begin for _, begin, _ in starts[1:]] + [len(grammar)]
    bodies = {name: grammar[begin:end] for (begin, _, name), end in zip(starts, ends, strict=True)}
    known: dict[str, int] = {}
    repeated = 0

    def size_of(name: str) -> int:
        nonlocal repeated
        if name not in bodies or not name.lstrip("_")[:1].isupper():
            return 1
        if name not in known:
            known[name] = -1
            whole, own = _measured(bodies[name], size_of)
            known[name], repeated = whole, repeated + own
        elif known[name] < 0:
            raise ValueError(f"the terminal {name} needs itself")
        return known[name]

    for name in bodies:
        size_of(name)
    longest = max((size for size in known.values() if size > len(grammar)), default=0)
    return repeated + longest + sum(_measured(body, size_of)[1] for name, body in bodies.items() if name not in known)


def _least(count: re.Match[str]) -> int:
    """The number of a count, or the lower of two."""
    return int((count[1] or count[2]).lstrip("0")[:_DIGITS] or "0")


def _measured(body: str, size_of: Callable[[str], int]) -> tuple[int, int]:
    """Signs of a rule written out, and those of its repetitions alone."""
    sizes, inside, at = _Sizes(), 0, 0
    while (token := _TOKEN.match(body, at)) is not None:
        text, at, count = token[0], token.end(), _COUNT.match(body, at)
        if count is not None:
            sizes.times(_least(count))
            at = count.end()
        elif text == "(":
            sizes.open()
        elif text == ")":
            sizes.close()
        elif text == "%json":
            at, signs = _schema(body, at)
            inside += signs
        elif text[0] in '"/' and not text.startswith("//"):
            inside += repeated_signs(text[1:-1])
            sizes.part(len(text))
        elif not text.isspace() and text not in ("|", "//"):
            sizes.part(size_of(text))
    return min(sizes.whole + inside, _MOST), min(sizes.repeated + inside, _MOST)


def _schema(body: str, at: int) -> tuple[int, int]:
    """Where the schema ends that begins at ``at``, and the signs of the expressions in it."""
    while at < len(body) and body[at].isspace():
        at += 1
    document, end = json.JSONDecoder().raw_decode(body, at)
    return end, sum(map(repeated_signs, texts_of(document)))


def _end_of_sign(expression: str, at: int) -> int:
    """Behind the sign that begins at ``at``: an escape or a class is one."""
    if expression[at] == "\\" and (named := _ESCAPED.match(expression, at)) is not None:
        return named.end()
    if expression[at] != "[":
        return at + 1
    end = at + 1
    while end < len(expression) and expression[end] != "]":
        end += 2 if expression[end] == "\\" else 1
    return end + 1
