"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..call import aside, encoded, plan, served_model
from ..deps import ServicesDep
from ..schemas import parse_body
from ..schemas_chat import ChatBody
from ..shape_chat import ChatShape
from ..stream import answer
from ..tools import Reading, tool_wish
from .openapi import body_of

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_of(ChatBody))
async def chat_completions(request: Request, services: ServicesDep) -> Response:
    """Answer a conversation. Without ``max_tokens`` the reply may take the rest of the context."""
    raw = await request.body()
    body = await aside(len(raw), lambda: parse_body(raw, ChatBody))
    served_model(services, body.model)
    render, wish = body.renderer(services.chat), tool_wish(body)
    ends: list[str] = []

    def encode() -> list[list[int]]:
        text = render()
        ends.append(text[-64:])
        return [encoded(services, text)]

    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens

    def max_tokens(prompt: Sequence[int]) -> int:
        return max(1, services.room - len(prompt)) if asked is None else asked

    prompts = await aside(len(raw), encode)
    reading = Reading.of(services.formats, body, wish, ends[0])
    call = plan(
        services,
        body,
        prompts,
        prefix="chatcmpl",
        headers=request.headers,
        max_tokens=max_tokens,
        logprobs=body.wanted_logprobs(),
        adapt=reading.adapt,
    )
    return await answer(request, services, call, ChatShape(call, services.tokenizer, reading))
