"""Collects a server's answers to the questions; what it cannot do is recorded as such and is no failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import httpx
from pydantic import Field

from energyopt.core.errors import EngineError
from energyopt.core.results import Result

from .questions import PERSON, PLAIN, STRUCTURED, TOOLS, WITH_TOOLS, Json, needles

UNSUPPORTED = (400, 404, 422, 501)
"""Statuses with which servers refuse a feature that they lack."""


class Token(Result):
    """One generated token: its text, its log-probability, and those of the likeliest at its place."""

    text: str
    logprob: float
    top: Mapping[str, float] = Field(default_factory=dict)


class ToolCall(Result):
    id: str
    name: str
    arguments: str


class Answer(Result):
    """One answer. ``tokens`` is () where the server gives no log-probabilities."""

    text: str
    reasoning: str = ""
    finish: str = ""
    tokens: tuple[Token, ...] = ()
    calls: tuple[ToolCall, ...] = ()


class Answers(Result):
    """All answers of one configuration; a part that the server refused is None."""

    model: str
    plain: tuple[Answer, ...]
    tools: tuple[Answer, ...] | None
    structured: tuple[Answer, ...] | None
    needles: tuple[Answer, ...]
    needle_words: int


Post = Callable[[Json], tuple[int, Json]]
"""Sends the body of a chat; returns status and JSON."""


def collect(post: Post, model: str, *, tokens: int = 48, prompts: int = len(PLAIN), words: int = 400) -> Answers:
    """Ask everything once, greedily. Raises EngineError if the server does not even answer plainly."""
    asked = [_asked(post, model, text, tokens, logprobs=True) for text in PLAIN[:prompts]]
    plain = [answer for answer in asked if answer is not None]
    if len(plain) < len(asked):
        plain = [_required(_asked(post, model, text, tokens)) for text in PLAIN[:prompts]]
    found = needles(words)
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    return Answers(
        model=model,
        plain=tuple(plain),
        tools=_tools(post, model, 2 * tokens),
        structured=_all(_asked(post, model, text, 2 * tokens, response_format=form) for text in STRUCTURED),
        needles=tuple(_required(_asked(post, model, needle.prompt, 16)) for needle in found),
        needle_words=words,
    )


def _tools(post: Post, model: str, tokens: int) -> tuple[Answer, ...] | None:
    """The questions with tools. A model that calls none where the first plainly asks for it is not asked further."""
    first = _asked(post, model, WITH_TOOLS[0], tokens, tools=list(TOOLS))
    if first is None or not first.calls:
        return None if first is None else (first,)
    return _all(iter([first, *(_asked(post, model, text, tokens, tools=list(TOOLS)) for text in WITH_TOOLS[1:])]))


def _all(answers: Iterator[Answer | None]) -> tuple[Answer, ...] | None:
    """None as soon as one of them was refused; the rest is then not asked."""
    found: list[Answer] = []
    for answer in answers:
        if answer is None:
            return None
        found.append(answer)
    return tuple(found)


def _required(answer: Answer | None) -> Answer:
    if answer is None:
        raise EngineError("The server refuses a plain chat, so its answers cannot be checked.")
    return answer


def _asked(post: Post, model: str, text: str, tokens: int, **fields: object) -> Answer | None:
    """One answer; None if the server refuses the request. Raises EngineError for any other failure."""
    body: Json = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    body |= {"temperature": 0, "seed": 0, **fields}
    if fields.get("logprobs"):
        body["top_logprobs"] = 5
    status, reply = post(body)
    if status in UNSUPPORTED:
        return None
    if status != 200:
        raise EngineError(f"The server answered {status} to an accuracy question.")
    try:
        return _answer(reply["choices"][0])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineError(f"The server's answer has not the form of a chat completion: {error!r}.") from error


def _answer(choice: Mapping[str, object]) -> Answer:
    message = choice["message"]
    if not isinstance(message, dict):
        raise ValueError("message is not an object")
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return Answer(
        text=str(message.get("content") or ""),
        reasoning=str(reasoning),
        finish=str(choice.get("finish_reason") or ""),
        tokens=tuple(_token(entry) for entry in content or ()),
        calls=tuple(_call(entry) for entry in message.get("tool_calls") or ()),
    )


def _token(entry: Mapping[str, object]) -> Token:
    top = entry.get("top_logprobs")
    likely = {str(one["token"]): float(one["logprob"]) for one in top} if isinstance(top, Sequence) else {}
    return Token(text=str(entry["token"]), logprob=float(str(entry["logprob"])), top=likely)


def _call(entry: Mapping[str, object]) -> ToolCall:
    function = entry["function"]
    if not isinstance(function, dict):
        raise ValueError("function is not an object")
    return ToolCall(
        id=str(entry.get("id") or ""), name=str(function.get("name") or ""), arguments=str(function.get("arguments"))
    )


class HttpPost:
    """Sends chats to a server; a context manager. Connection failures raise EngineError."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._url = f"{url}/v1/chat/completions"
        self._client = httpx.Client(timeout=600.0, headers=headers)

    def __enter__(self) -> HttpPost:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def __call__(self, body: Json) -> tuple[int, Json]:
        try:
            response = self._client.post(self._url, json=body)
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, {}
        except httpx.HTTPError as error:
            raise EngineError(f"{self._url} does not answer: {error}.") from error
