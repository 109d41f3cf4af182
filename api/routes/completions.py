"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from energyopt.core.errors import RequestError

from ..call import aside, encoded, plan, served_model
from ..deps import ServicesDep
from ..errors import UnsupportedFieldError
from ..schemas import parse_body
from ..schemas_completions import CompletionBody, Prompt
from ..services import Services
from ..shapes import CompletionShape
from ..stream import answer
from .openapi import body_of

router = APIRouter()

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for plain completions."""


@router.post("/v1/completions", openapi_extra=body_of(CompletionBody))
async def completions(request: Request, services: ServicesDep) -> Response:
    """Continue one or several prompts, given as text or token ids."""
    raw = await request.body()
    body = await aside(len(raw), lambda: parse_body(raw, CompletionBody))
    served_model(services, body.model)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise UnsupportedFieldError("best_of is not supported by this server unless it equals n.", param="best_of")
    asked = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    scored = bool(body.echo) and (body.logprobs is not None or asked == 0)

    def encode() -> list[list[int]]:
        return [_token_ids(services, prompt) for prompt in body.prompt]

    def max_tokens(_: Sequence[int]) -> int:
        return asked

    prompts = await aside(len(raw), encode)
    echoes = await aside(len(raw), lambda: [_echo(services, prompt) for prompt in body.prompt]) if body.echo else ()
    call = plan(
        services,
        body,
        prompts,
        prefix="cmpl",
        headers=request.headers,
        max_tokens=max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=(body.logprobs or 0) if scored else None,
        echoes=echoes,
    )
    return await answer(request, services, call, CompletionShape(call, services.tokenizer))


def _echo(services: Services, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else services.tokenizer.decode(prompt, skip_special=False)


def _token_ids(services: Services, prompt: Prompt) -> list[int]:
    if isinstance(prompt, str):
        return encoded(services, prompt)
    size = services.tokenizer.vocab_size
    if min(prompt) < 0 or max(prompt) >= size:
        wrong = next(token for token in prompt if not 0 <= token < size)
        message = f"prompt holds the token id {str(wrong)[:40]}: ids must be between 0 and {size - 1}."
        raise RequestError(message, param="prompt")
    return prompt
