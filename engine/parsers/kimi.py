"""Kimi K2: the header of a call is its id, ``functions.<name>:<number>``, which the next turn must repeat."""

from __future__ import annotations

from .sections import Marks, SectionCalls

MARKS = Marks(
    section="<|tool_calls_section_begin|>",
    call="<|tool_call_begin|>",
    arguments="<|tool_call_argument_begin|>",
    end_call="<|tool_call_end|>",
    end_section="<|tool_calls_section_end|>",
)


class KimiCalls(SectionCalls):
    """Satisfies ``OutputParser``."""

    def __init__(self) -> None:
        super().__init__(MARKS)

    def _begin_from(self, header: str) -> None:
        name, colon, number = header.removeprefix("functions.").rpartition(":")
        whole = colon and number.isdigit()
        self._begin_call(name if whole else header, header if whole else None)
