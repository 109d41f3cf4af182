"""DeepSeek: V3 and R1 write the type first and the arguments in a fence, V3.1 the name and the bare arguments."""

from __future__ import annotations

from .sections import Marks, SectionCalls

MARKS = Marks(
    section="<｜tool▁calls▁begin｜>",
    call="<｜tool▁call▁begin｜>",
    arguments="<｜tool▁sep｜>",
    end_call="<｜tool▁call▁end｜>",
    end_section="<｜tool▁calls▁end｜>",
)


class DeepSeekCalls(SectionCalls):
    """Satisfies ``OutputParser`` for both: a header that is just ``function`` is V3's, whose name comes after it."""

    def __init__(self) -> None:
        super().__init__(MARKS)
        self._name: str | None = None

    def _begin_from(self, header: str) -> None:
        self._name = None
        if header == "function":
            self._name = ""
        else:
            self._begin_call(header)

    def _read_arguments(self, text: str) -> None:
        """V3: the name up to the end of its line, then what fences the arguments up to the first brace."""
        if self._name is None:
            self._argue(text)
            return
        self._name += text
        name, _, rest = self._name.partition("\n")
        brace = rest.find("{")
        if brace >= 0:
            self._name = None
            self._begin_call(name.strip())
            self._argue(rest[brace:])

    def _end_call(self) -> None:
        written, self._name = self._name or "", None
        if "\n" in written:  # a name, and nothing that begins arguments
            self._begin_call(written.partition("\n")[0].strip())
        super()._end_call()
