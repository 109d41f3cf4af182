"""Tools in a request: which of them the model may or must call, and how its answer is then read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from energyopt.core.errors import RequestError
from engine.parsers.events import OutputParser
from engine.parsers.formats import VENDOR_IDS, Formats
from engine.parsers.think import END
from engine.request import SamplingParams
from engine.structured.ports import GuideSpec

from .schemas_chat import ChatBody

_ANY = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolWish:
    """``given``: the model is told of tools. ``forced``: the function it must call, or True for any of them.

    ``guide`` is the form of an answer that is forced. ``single``: no more than one call is to be made.
    """

    given: bool = False
    forced: str | bool = False
    guide: GuideSpec | None = None
    single: bool = False


def tool_wish(body: ChatBody) -> ToolWish:
    """Raises RequestError for tools that are none, and for a choice that does not fit them."""
    tools = [_function(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())]
    choice = body.tool_choice
    if choice in (None, "auto", "none"):
        return ToolWish(given=bool(tools) and choice != "none", single=body.parallel_tool_calls is False)
    if not tools:
        raise RequestError("tool_choice needs tools to choose from.", param="tool_choice")
    schemas = {str(tool["name"]): tool.get("parameters") or _ANY for tool in tools}
    if choice == "required":
        most = {"maxItems": 1} if body.parallel_tool_calls is False else {}
        return ToolWish(
            True, True, _spec({"type": "array", "minItems": 1, **most, "items": {"anyOf": _calls(schemas)}})
        )
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in schemas:
        raise RequestError(
            f"tool_choice = {str(choice)[:80]} is not allowed: it must be 'none', 'auto', 'required' or "
            f"name one of the functions {', '.join(schemas)[:200]}.",
            param="tool_choice",
        )
    return ToolWish(True, name, _spec(schemas[name]))


def _function(tool: Mapping[str, object], where: str) -> Mapping[str, object]:
    function = tool.get("function")
    if not (isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]):
        raise RequestError(f"{where} must have a function with a name.", param="tools")
    if not isinstance(function.get("parameters") or {}, dict):
        raise RequestError(f"{where}.function.parameters must be a JSON schema, an object.", param="tools")
    return function


def _spec(schema: object) -> GuideSpec:
    return GuideSpec("json_schema", json.dumps(schema), "tools")


def _calls(schemas: Mapping[str, object]) -> list[dict[str, object]]:
    return [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                "arguments": _moved(schema, f"#/items/anyOf/{index}/properties/arguments"),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for index, (name, schema) in enumerate(schemas.items())
    ]


def _moved(schema: object, place: str) -> object:
    """A schema that now stands at ``place``: references to its own parts follow it."""
    if isinstance(schema, list):
        return [_moved(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers of one call are read, and under which names their calls go out.

    ``opened``: the prompt began the reasoning. ``calls_before``: how many calls the conversation holds already.
    """

    formats: Formats = field(default_factory=Formats)
    wish: ToolWish = field(default_factory=ToolWish)
    opened: bool = False
    calls_before: int = 0
    show_reasoning: bool = True

    @classmethod
    def of(cls, formats: Formats, body: ChatBody, wish: ToolWish, prompt_end: str) -> Reading:
        return cls(
            formats, wish, formats.opened(prompt_end), _count_calls(body.messages), body.include_reasoning is not False
        )

    def parser(self) -> OutputParser | None:
        """A parser for one choice; None if all of its text is the answer."""
        return self.formats.parser(tools=self.wish.given, opened=self.opened, forced=self.wish.forced)

    def adapt(self, params: SamplingParams) -> SamplingParams:
        """What the reading asks of the engine. Raises RequestError if the client wants another form as well."""
        guide = params.guide
        if self.wish.guide is not None:
            if guide is not None:
                raise RequestError(
                    f"{guide.field} and tool_choice ask for two forms: an answer can have one.", param="tool_choice"
                )
            guide = self.wish.guide
        if guide is not None and self.opened:
            guide = replace(guide, after=END)
        reads = self.parser() is not None
        return replace(params, guide=guide, skip_special_tokens=params.skip_special_tokens and not reads)

    def call_id(self, index: int, name: str, given: str | None) -> str:
        """The id of the ``index``-th call of an answer: the model's own, its vendor's form, or a random one."""
        if given is not None:
            return given
        if self.formats.tools in VENDOR_IDS:
            return f"functions.{name}:{self.calls_before + index}"
        return f"call_{uuid.uuid4().hex[:24]}"


def _count_calls(messages: Sequence[Mapping[str, object]]) -> int:
    calls = [message.get("tool_calls") for message in messages]
    return sum(len(made) for made in calls if isinstance(made, list))
