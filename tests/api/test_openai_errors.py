"""What the official client raises for what goes wrong here."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from api.fake import ScriptedEngine
from energyopt.core.errors import EngineDeadError, EngineError, OverloadedError
from engine.output import Output

MODEL = "fake-model"
HELLO: Any = [{"role": "user", "content": "Hello"}]


def test_errors_have_the_clients_own_classes(served: Any) -> None:
    with served.client() as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="gpt-9", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model=MODEL, messages=HELLO, temperature=-1)
        with pytest.raises(openai.BadRequestError) as long:
            client.completions.create(model=MODEL, prompt="x" * 600)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert (bad.value.code, bad.value.param, bad.value.type) == (
        "invalid_value",
        "temperature",
        "invalid_request_error",
    )
    assert long.value.code == "context_length_exceeded"
    assert "600" in long.value.message


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(served: Any) -> None:
    with served.client() as client, pytest.raises(openai.BadRequestError, match="at least") as caught:
        client.completions.create(model=MODEL, prompt="x" * 2_000_000)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("error", "wait"), [(OverloadedError("full", retry_after=1.2), "2"), (EngineDeadError("dead"), "10")]
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_an_engine_that_cannot_take_more_answers_503(
    serve_it: Any, error: Exception, wait: str, stream: bool, n: int
) -> None:
    served = serve_it(engine=ScriptedEngine([error]))
    with served.client() as client, pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO, n=n, stream=stream, max_tokens=2)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == wait


@pytest.mark.parametrize("n", [1, 2])
def test_an_error_in_a_stream_raises_in_the_client(serve_it: Any, n: int) -> None:
    script: list[Output | Exception] = [Output("", "hello", (104,)), EngineError("the device is gone")]
    with serve_it(engine=ScriptedEngine(script)).client() as client:
        stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5, stream=True, n=n)
        seen: list[str] = []
        with pytest.raises(openai.APIError, match="the device is gone"):
            seen.extend(chunk.choices[0].delta.content for chunk in stream)
    assert set(seen) == {"", "hello"}


def test_a_wrong_key_is_refused(serve_it: Any) -> None:
    served = serve_it(api_key="sésame")
    with served.client(api_key="guess") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO)
    assert caught.value.code == "invalid_api_key"
    assert served.http.get("/v1/models").status_code == 401
    assert served.http.get("/health").status_code == 200
    right = {"authorization": "Bearer sésame".encode()}
    assert served.http.get("/v1/models", headers=right).status_code == 200
