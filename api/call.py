"""One HTTP call as the engine sees it: a request per choice, and what the reply needs to know."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from energyopt.core.errors import PromptTooLongError, RequestError
from energyopt.core.units import Seconds
from engine.disagg.params import FIELD, Transfer, parse_transfer
from engine.request import SamplingParams

from .errors import UnknownModelError
from .schemas import GenerationBody
from .services import Services
from .structure import guide_of

SESSION_HEADERS = ("x-session-id", "x-correlation-id", "x-session-affinity")
"""Where clients put a session when it is not in the body; the first one present counts."""

TIMEOUT_HEADER = "x-request-timeout"
"""Seconds that a client gives its request, where the body says nothing."""

T = TypeVar("T")

_NUMBER = re.compile(r"[0-9]{1,7}(\.[0-9]{0,9})?")
_OFF_LOOP_BYTES = 16 * 2**10
"""Bodies above this are read, rendered and tokenized on a thread: about a millisecond of work, less than a step."""


@dataclass(frozen=True, slots=True)
class Job:
    """One engine request. ``first`` marks the first choice of its prompt, which counts the prompt in the usage.

    ``echo`` is text that the reply repeats before the answer.
    """

    request_id: str
    prompt: Sequence[int]
    params: SamplingParams
    first: bool
    echo: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """Jobs in the order of their choice index, and the frame of the reply."""

    id: str
    model: str
    jobs: tuple[Job, ...]
    session: str | None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))


def served_model(services: Services, name: str | None) -> str:
    """The name to reply with; without one the first served name. Raises UnknownModelError."""
    if name is None:
        return services.model_names[0]
    if name not in services.model_names:
        served = ", ".join(services.model_names)
        raise UnknownModelError(f"The model {name[:200]!r} does not exist here: served is {served}.")
    return name


def session_of(body: GenerationBody, headers: Mapping[str, str]) -> str | None:
    """The session named by the body, else by a header."""
    if body.session_id:
        return body.session_id
    return next((headers[name][:256] for name in SESSION_HEADERS if headers.get(name)), None)


def encoded(services: Services, text: str, *, special: bool = True) -> list[int]:
    """Tokens of a prompt. Raises PromptTooLongError for one that cannot fit, before seconds go into tokenizing it."""
    least = services.tokenizer.at_least(text)
    if least > services.max_model_len:
        raise PromptTooLongError(
            f"The prompt has {len(text)} characters, which are at least {least} tokens: the context holds "
            f"{services.max_model_len}.",
            param="prompt",
        )
    return services.tokenizer.encode(text, special=special)


def timeout_of(body: GenerationBody, headers: Mapping[str, str]) -> Seconds | None:
    """The time that the client gives this request. Raises RequestError for a header that is not a number."""
    if body.timeout is not None:
        return Seconds(body.timeout)
    given = headers.get(TIMEOUT_HEADER)
    if not given:
        return None
    if not _NUMBER.fullmatch(given):
        message = f"The header {TIMEOUT_HEADER} is {given[:40]!r}: it must be a number of seconds."
        raise RequestError(message, param=TIMEOUT_HEADER)
    return Seconds(float(given))


def transfer_of(services: Services, body: GenerationBody, single: bool) -> Transfer | None:
    """The leg of a hand-over that this call is. Raises RequestError where it cannot be one."""
    transfer = None if body.kv_transfer_params is None else parse_transfer(body.kv_transfer_params)
    if transfer is not None and not services.hands_over:
        raise RequestError(f"{FIELD}: this engine hands nothing over; start it with --kv-transfer.", param=FIELD)
    if transfer is not None and not single:
        raise RequestError(f"{FIELD}: only one prompt with n = 1 can be handed over.", param=FIELD)
    return transfer


async def aside(raw_bytes: int, work: Callable[[], T]) -> T:
    """Do what takes time by a body's size here when it is small, else on a thread, so that other streams go on."""
    return await asyncio.to_thread(work) if raw_bytes > _OFF_LOOP_BYTES else work()


def unchanged(params: SamplingParams) -> SamplingParams:
    """The wish of a route that has none."""
    return params


def plan(
    services: Services,
    body: GenerationBody,
    prompts: Sequence[Sequence[int]],
    *,
    prefix: str,
    headers: Mapping[str, str],
    max_tokens: Callable[[Sequence[int]], int],
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    echoes: Sequence[str] = (),
    adapt: Callable[[SamplingParams], SamplingParams] = unchanged,
) -> Call:
    """One job per prompt and choice. Raises RequestError or UnknownModelError; nothing is submitted yet.

    ``echoes`` are texts to repeat before the answers, one for each prompt, or none at all; ``adapt`` is what else a
    route changes in how tokens are chosen.
    """
    model = served_model(services, body.model)
    n = body.n or 1
    if n * len(prompts) > services.limits.max_choices:
        message = f"{len(prompts)} prompts times n = {n} is not allowed: at most {services.limits.max_choices} choices."
        raise RequestError(message, param="n")
    call_id = f"{prefix}-{uuid.uuid4().hex}"
    single = n * len(prompts) == 1
    jobs: list[Job] = []
    timeout, transfer = timeout_of(body, headers), transfer_of(services, body, single)
    for prompt, echo in zip(prompts, echoes or ("",) * len(prompts), strict=True):
        for choice in range(n):
            request_id = call_id if single else f"{call_id}-{len(jobs)}"
            params = sampling(services, body, max_tokens(prompt), choice, logprobs, prompt_logprobs)
            params = replace(params, timeout=timeout, transfer=transfer)
            jobs.append(Job(request_id, prompt, adapt(params), first=choice == 0, echo=echo))
    options = body.stream_options
    return Call(
        id=call_id,
        model=model,
        jobs=tuple(jobs),
        session=session_of(body, headers),
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
    )


def sampling(
    services: Services,
    body: GenerationBody,
    max_tokens: int,
    choice: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Sampling of one choice. Choices of one seeded call take successive seeds, or all would be the same text."""
    given: dict[str, Any] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "min_p": body.min_p,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "repetition_penalty": body.repetition_penalty,
        "min_tokens": body.min_tokens,
        "priority": body.priority,
        "skip_special_tokens": body.skip_special_tokens,
    }
    return SamplingParams(
        max_tokens=max_tokens,
        top_k=max(0, body.top_k or 0),
        seed=None if body.seed is None else (body.seed + choice + 2**63) % 2**64 - 2**63,
        stop=_stops(body.stop, services.limits.max_stop_strings),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        ignore_eos=bool(body.ignore_eos),
        logit_bias=body.biases(),
        guide=guide_of(body),
        **{name: value for name, value in given.items() if value is not None},
    )


def _stops(stop: str | list[str] | None, limit: int) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > limit:
        raise RequestError(f"stop has {len(stops)} entries: at most {limit} are allowed.", param="stop")
    if "" in stops:
        raise RequestError("stop holds an empty string, which would end every text at once.", param="stop")
    return stops
