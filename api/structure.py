"""The form that a client wants its answer to have: OpenAI's ``response_format`` and the fields of vLLM, as one wish."""

from __future__ import annotations

import json
from collections.abc import Mapping

from energyopt.core.errors import RequestError
from engine.structured.ports import GuideKind, GuideSpec

from .errors import UnsupportedFieldError
from .schemas import GenerationBody

_KINDS: Mapping[str, GuideKind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
"""Names in ``structured_outputs``, and after ``guided_``."""

_HARMLESS = {"json_object", "disable_fallback"}
"""There is one way to follow a form here, so nothing is fallen back on."""


def guide_of(body: GenerationBody) -> GuideSpec | None:
    """What the body asks for. Raises RequestError for a malformed wish, and for two of them."""
    wishes = [*_response_format(body), *_structured(body), *_guided(body)]
    if len(wishes) > 1:
        fields = " and ".join(dict.fromkeys(wish.field for wish in wishes))
        raise RequestError(f"{fields} ask for several forms: an answer can have one.", param=wishes[1].field)
    return wishes[0] if wishes else None


def _response_format(body: GenerationBody) -> list[GuideSpec]:
    wish = body.response_format
    if wish is None or wish == {"type": "text"}:
        return []
    match wish.get("type"):
        case "json_object":
            return [GuideSpec("json_object")]
        case "json_schema":
            inner = wish.get("json_schema")
            schema = inner.get("schema", {}) if isinstance(inner, dict) else None
            if not isinstance(schema, dict):
                message = "response_format.json_schema must be an object with a JSON schema in schema."
                raise RequestError(message, param="response_format")
            return [GuideSpec("json_schema", json.dumps(schema))]
    raise UnsupportedFieldError(
        f"response_format.type = {str(wish.get('type'))[:60]!r} is not supported: "
        "allowed are 'text', 'json_object' and 'json_schema'.",
        param="response_format",
    )


def _structured(body: GenerationBody) -> list[GuideSpec]:
    given = {name: value for name, value in (body.structured_outputs or {}).items() if value not in (None, False)}
    unknown = sorted(given.keys() - _KINDS.keys() - _HARMLESS)
    if unknown:
        allowed = ", ".join([*_KINDS, "json_object"])
        message = f"structured_outputs.{unknown[0][:60]} is not supported: allowed are {allowed}."
        raise UnsupportedFieldError(message, param="structured_outputs")
    found = [_wish(kind, given[name], "structured_outputs") for name, kind in _KINDS.items() if name in given]
    if "json_object" in given:
        found.append(GuideSpec("json_object", field="structured_outputs"))
    return found


def _guided(body: GenerationBody) -> list[GuideSpec]:
    given = {
        "guided_json": body.guided_json,
        "guided_regex": body.guided_regex,
        "guided_choice": body.guided_choice or None,
        "guided_grammar": body.guided_grammar,
    }
    return [
        _wish(_KINDS[name.removeprefix("guided_")], value, name) for name, value in given.items() if value is not None
    ]


def _wish(kind: GuideKind, value: object, field: str) -> GuideSpec:
    """A schema may be given as JSON text, as vLLM allows; choices are kept as JSON."""
    if kind == "choice" or (kind == "json_schema" and not isinstance(value, str)):
        return GuideSpec(kind, json.dumps(value), field)
    if not isinstance(value, str):
        raise RequestError(f"{field} must give {kind} as a string.", param=field)
    return GuideSpec(kind, value, field)
