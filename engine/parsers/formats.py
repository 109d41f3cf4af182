"""Which parser reads which model: by name, as vLLM spells them, or by what the model's own chat template says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from energyopt.core.errors import ConfigError

from .deepseek import MARKS as DEEPSEEK
from .deepseek import DeepSeekCalls
from .events import OutputParser
from .forced import NamedCall, RequiredCalls
from .gemma import GemmaCalls
from .harmony import HarmonyMessages
from .hermes import HermesCalls
from .kimi import MARKS as KIMI
from .kimi import KimiCalls
from .llama import LlamaCalls
from .think import BEGIN, Plain, ThinkThenAnswer

HARMONY = "openai"
THINK = "think"

TOOLS: Mapping[str, Callable[[], OutputParser]] = {
    "hermes": HermesCalls,
    "llama3_json": LlamaCalls,
    "deepseek": DeepSeekCalls,
    "kimi_k2": KimiCalls,
    "gemma": GemmaCalls,
    HARMONY: HarmonyMessages,
}
_TOOL_ALIASES = {"deepseek_v3": "deepseek", "deepseek_v31": "deepseek", "qwen": "hermes", "pythonic": "gemma"}

REASONING = (THINK, HARMONY)
_REASONING_ALIASES = dict.fromkeys(("deepseek_r1", "deepseek_v3", "qwen3", "kimi_k2"), THINK) | {
    "openai_gptoss": HARMONY
}

_TOOL_SIGNS = (
    ("<|channel|>", HARMONY),
    (KIMI.section, "kimi_k2"),
    (DEEPSEEK.section, "deepseek"),
    ("<tool_call>", "hermes"),
    ("<|python_tag|>", "llama3_json"),
    ("Environment: ipython", "llama3_json"),
    ("<start_of_turn>", "gemma"),
)
"""What a template says, and whose format that is; the first one that is found counts."""

VENDOR_IDS = frozenset({"kimi_k2"})
"""Formats whose models expect ``functions.<name>:<number>`` back as the id of a call."""


@dataclass(frozen=True, slots=True)
class Formats:
    """How one model writes tool calls and reasoning; None where it does not, or where nobody knows."""

    tools: str | None = None
    reasoning: str | None = None

    def parser(self, *, tools: bool = False, opened: bool = False, forced: str | bool = False) -> OutputParser | None:
        """The parser of one answer; None if all of it is the answer.

        ``tools``: the request has some. ``opened``: the prompt began the reasoning. ``forced``: a guide makes the
        answer an array of calls, or the arguments of the function of that name.
        """
        if forced:
            answer: OutputParser = NamedCall(forced) if isinstance(forced, str) else RequiredCalls()
        elif HARMONY in (self.reasoning, self.tools if tools else None):
            return HarmonyMessages()
        else:
            answer = TOOLS[self.tools]() if tools and self.tools is not None else Plain()
        if self.reasoning == THINK:
            return ThinkThenAnswer(answer, opened=opened)
        return None if isinstance(answer, Plain) else answer

    def opened(self, prompt: str) -> bool:
        """Whether a prompt ends with the beginning of reasoning."""
        return self.reasoning == THINK and prompt.rstrip().endswith(BEGIN)


def formats_of(template: str | None, *, tools: str = "auto", reasoning: str = "auto") -> Formats:
    """Formats by name; "auto" looks at the model's template, "none" reads nothing. Raises ConfigError."""
    source = template or ""
    if tools == "auto":
        found = next((name for sign, name in _TOOL_SIGNS if sign in source), None)
    else:
        found = _named("tool_call_parser", tools, _TOOL_ALIASES, TOOLS)
    if reasoning != "auto":
        return Formats(found, _named("reasoning_parser", reasoning, _REASONING_ALIASES, REASONING))
    if found == HARMONY:
        return Formats(found, HARMONY)
    return Formats(found, THINK if "</think>" in source else None)


def _named(
    option: str, name: str, aliases: Mapping[str, str], known: Mapping[str, object] | tuple[str, ...]
) -> str | None:
    if name == "none":
        return None
    name = aliases.get(name, name)
    if name not in known:
        allowed = ", ".join(["auto", "none", *known, *aliases])
        raise ConfigError(f"{option} = {name!r} is not allowed: allowed are {allowed}.")
    return name
