"""From a wish to the grammar that the guide library compiles."""

from __future__ import annotations

import json

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from .ports import GuideError, GuideSpec
from .written_out import MAX_REPEATED, grammar_signs, repeated_signs, texts_of

MAX_SOURCE = 256 * 2**10
"""Characters of a schema, expression or grammar: more than any that a person wrote."""

MAX_CHOICES = 1000

_SPACE = r"[ \n\t]{0,24}"
"""White space between the parts of JSON. It is bounded, or an undecided model could write it for ever."""

_ANY_OBJECT = '{"type": "object"}'


def grammar_of(spec: GuideSpec) -> str:
    """Raises GuideError for a source that is too large or of the wrong shape; the grammar itself is not checked."""
    where = spec.field
    if len(spec.source) > MAX_SOURCE:
        message = f"{where} has {len(spec.source)} characters: at most {MAX_SOURCE} are allowed."
        raise GuideError(message, param=where)
    try:
        repeated = _repeated(spec)
        if repeated > MAX_REPEATED:
            raise ValueError(f"its repetitions come to {repeated} signs, and {MAX_REPEATED} are allowed")
        return _grammar(spec)
    except (ValueError, RecursionError) as error:  # what is no JSON, or refused below
        raise GuideError(f"{where} cannot be read: {first_line(error)}.", param=where) from error


def first_line(error: object) -> str:
    """What the library says, without the source that it repeats below."""
    text = next(iter(str(error).strip().splitlines()), "") or "it is not understood"
    return "no text satisfies it" if text.startswith("NoExtension") else text[:300].rstrip(".")


def _repeated(spec: GuideSpec) -> int:
    """Signs that the repetitions in a source come to. Raises ValueError for a schema that is no JSON."""
    match spec.kind:
        case "regex":
            return repeated_signs(spec.source)
        case "grammar":
            return grammar_signs(_lark(spec.source))
        case "json_schema":
            return sum(map(repeated_signs, texts_of(json.loads(spec.source))))
    return 0


def _grammar(spec: GuideSpec) -> str:
    match spec.kind:
        case "json_object":
            return _json(_ANY_OBJECT)
        case "json_schema":
            return _json(spec.source)
        case "regex":
            return LLMatcher.grammar_from_regex(spec.source)
        case "choice":
            return LLMatcher.grammar_from_regex(_choices(json.loads(spec.source)))
        case "grammar":
            return LLMatcher.grammar_from_lark(_lark(spec.source))


def _lark(source: str) -> str:
    """A grammar in Lark's dialect, from there or from llama.cpp's. Raises ValueError with the library's words."""
    try:
        return any_to_lark(source)
    except Exception as error:  # the border to a parser that raises whatever comes: its own, plain ones, IndexError
        raise ValueError(first_line(error)) from error


def _json(schema: str) -> str:
    schema = "{}" if schema.strip() == "true" else schema  # the library wants an object
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _SPACE})


def _choices(choices: object) -> str:
    if not isinstance(choices, list) or not 0 < len(choices) <= MAX_CHOICES:
        raise ValueError(f"1 to {MAX_CHOICES} choices are allowed")
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise ValueError("each choice must be a text with at least one character")
    return "|".join("".join(map(_literal, choice)) for choice in choices)


def _literal(sign: str) -> str:
    return sign if sign.isascii() and sign.isalnum() else f"\\x{{{ord(sign):x}}}"
