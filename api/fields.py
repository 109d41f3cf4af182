"""Which fields of a request body are used, which do no harm, and which would promise something we do not do.

A misspelt option must not do nothing, so a field outside these tables is refused with the closest known name. The
tables cover OpenAI's API and the extensions of vLLM's, whose clients send many fields at their default.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from .errors import UnknownFieldError, UnsupportedFieldError

HARMLESS = frozenset(
    {
        "metadata",
        "mm_processor_kwargs",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "user",
    }
)
"""Accepted and not used: labels and routing hints, which promise nothing that a client could see."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "add_special_tokens": (),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "cache_salt": (),  # a client that salts wants its prefixes apart from others': ignoring that would break it
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "web_search_options": (),
}
"""Known and not implemented: accepted when null or at one of these values, which ask for nothing."""


def refuse_unknown(body: Mapping[str, object], used: Iterable[str]) -> None:
    """Check every field name of ``body``; ``used`` are the ones the route reads.

    Raises UnknownFieldError or UnsupportedFieldError for the first field that cannot be honoured.
    """
    known = {*used, *HARMLESS, *NEUTRAL}
    for name, value in body.items():
        if name not in known:
            raise UnknownFieldError(f"Unknown field {name[:100]!r}{_hint(name, known)}.", param=name[:100])
        allowed = NEUTRAL.get(name)
        if allowed is not None and name not in used and value is not None and value not in allowed:
            offer = " or ".join(repr(entry) for entry in (*allowed, None)).replace("None", "null")
            message = f"{name} is not supported by this server: only {offer} is accepted."
            raise UnsupportedFieldError(message, param=name)


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name[:100], sorted(known), n=1)
    return f": did you mean {close[0]!r}?"[:-1] if close else ": it is not a field of this route"
