"""``POST /tokenize`` and ``POST /detokenize``: what the model's tokenizer makes of a text, and back."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from starlette.requests import Request

from energyopt.core.errors import RequestError

from ..call import aside, encoded, served_model
from ..deps import ServicesDep
from ..schemas import decoded_json, parse_body
from ..schemas_tokens import DetokenizeBody, TokenizeChatBody, TokenizeTextBody
from ..services import Services
from .openapi import body_of

router = APIRouter()


@router.post("/tokenize", openapi_extra=body_of(TokenizeTextBody))
async def tokenize(request: Request, services: ServicesDep) -> dict[str, object]:
    """Ids of a ``prompt``, or of ``messages`` as the chat template renders them."""
    raw = await request.body()
    return await aside(len(raw), lambda: _tokenized(services, raw))


@router.post("/detokenize", openapi_extra=body_of(DetokenizeBody))
async def detokenize(request: Request, services: ServicesDep) -> dict[str, object]:
    """The text of ``tokens``, special ones by name."""
    raw = await request.body()
    return await aside(len(raw), lambda: _detokenized(services, raw))


def _tokenized(services: Services, raw: bytes) -> dict[str, object]:
    body: TokenizeChatBody | TokenizeTextBody
    if "messages" in decoded_json(raw):
        body = parse_body(raw, TokenizeChatBody)
        encode = _of_chat(services, body)
    else:
        body = parse_body(raw, TokenizeTextBody)
        encode = _of_text(services, body)
    served_model(services, body.model)
    ids = encode()
    strings = [services.tokenizer.token_text(token) for token in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": services.max_model_len, "tokens": ids, "token_strs": strings}


def _detokenized(services: Services, raw: bytes) -> dict[str, object]:
    body = parse_body(raw, DetokenizeBody)
    served_model(services, body.model)
    size = services.tokenizer.vocab_size
    wrong = next((token for token in body.tokens if not 0 <= token < size), None)
    if wrong is not None:
        message = f"tokens holds the id {str(wrong)[:40]}: ids must be between 0 and {size - 1}."
        raise RequestError(message, param="tokens")
    return {"prompt": services.tokenizer.decode(body.tokens, skip_special=False)}


def _of_chat(services: Services, body: TokenizeChatBody) -> Callable[[], list[int]]:
    render = body.renderer(services.chat)
    return lambda: encoded(services, render())


def _of_text(services: Services, body: TokenizeTextBody) -> Callable[[], list[int]]:
    special = body.add_special_tokens is not False
    return lambda: encoded(services, body.prompt, special=special)
