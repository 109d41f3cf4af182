"""Every error in OpenAI's shape, with its status; no detail of a fault reaches a client."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import energyopt.core.errors as core_errors
from api.errors import BodyTooLargeError, UnauthorizedError, UnknownFieldError, UnknownModelError, problem_of
from api.fake import ScriptedEngine
from energyopt.core.errors import (
    EnergyoptError,
    EngineDeadError,
    EngineError,
    ModelNotFoundError,
    NotFoundError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
    SensorError,
)

TABLE = [
    (RequestError("m", param="top_p"), 400, "invalid_request_error", "top_p", "invalid_value", None),
    (PromptTooLongError("m", param="prompt"), 400, "invalid_request_error", "prompt", "context_length_exceeded", None),
    (UnknownFieldError("m", param="x"), 400, "invalid_request_error", "x", "unknown_parameter", None),
    (UnknownModelError("m"), 404, "invalid_request_error", "model", "model_not_found", None),
    (NotFoundError("m"), 404, "invalid_request_error", None, None, None),
    (ModelNotFoundError("m"), 404, "invalid_request_error", None, None, None),
    (BodyTooLargeError("m"), 413, "invalid_request_error", None, "request_too_large", None),
    (UnauthorizedError("m"), 401, "invalid_request_error", None, "invalid_api_key", None),
    (OverloadedError("m", retry_after=0.2), 503, "service_unavailable_error", None, "overloaded", "1"),
    (OverloadedError("m", retry_after=7.01), 503, "service_unavailable_error", None, "overloaded", "8"),
    (OverloadedError("m", retry_after=float("inf")), 503, "service_unavailable_error", None, "overloaded", "10"),
    (EngineDeadError("m"), 503, "service_unavailable_error", None, "engine_unavailable", "10"),
    (EngineError("m"), 500, "server_error", None, None, None),
    (SensorError("m"), 500, "server_error", None, None, None),
]


@pytest.mark.parametrize(("error", "status", "kind", "param", "code", "retry"), TABLE)
async def test_the_table(
    in_process: Any, error: Exception, status: int, kind: str, param: str | None, code: str | None, retry: str | None
) -> None:
    async with in_process(engine=ScriptedEngine([error])) as http:
        reply = await http.post("/v1/completions", json={"prompt": "x"})
    assert reply.status_code == status
    assert reply.json() == {"error": {"message": "m", "type": kind, "param": param, "code": code}}
    assert reply.headers.get("retry-after") == retry
    assert reply.headers["content-type"] == "application/json"


def test_every_error_of_the_tree_has_a_problem() -> None:
    for _, kind in inspect.getmembers(core_errors, inspect.isclass):
        if issubclass(kind, EnergyoptError):
            error = kind("m", retry_after=1.0) if kind is OverloadedError else kind("m")
            assert problem_of(error).status == kind.http_status
            assert problem_of(error).message == "m"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_fault_of_ours_is_a_500_without_detail(
    in_process: Any, caplog: pytest.LogCaptureFixture, stream: bool, n: int
) -> None:
    async with in_process(engine=ScriptedEngine([ValueError("secret path")])) as http:
        reply = await http.post("/v1/completions", json={"prompt": "x", "stream": stream, "n": n})
    assert reply.status_code == 500
    assert reply.json()["error"]["type"] == "server_error"
    assert "secret" not in reply.text
    assert reply.headers["x-request-id"]
    assert "secret path" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/nothing", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/docs", 404),
    ],
)
async def test_unknown_routes_and_methods_have_the_same_shape(
    in_process: Any, method: str, path: str, status: int
) -> None:
    async with in_process() as http:
        reply = await http.request(method, path)
    assert reply.status_code == status
    assert reply.json().keys() == {"error"}
    assert path in reply.json()["error"]["message"]
    assert ("allow" in reply.headers) == (status == 405)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[1]", b"null", b"nan", b'{"prompt": NaN}', b"[" * 100_000])
async def test_what_is_no_json_object_is_a_400(in_process: Any, raw: bytes) -> None:
    async with in_process() as http:
        reply = await http.post("/v1/completions", content=raw)
    assert reply.status_code == 400
    assert "JSON" in reply.json()["error"]["message"]


async def test_a_lone_surrogate_is_a_400(in_process: Any) -> None:
    async with in_process() as http:
        reply = await http.post("/v1/completions", content=b'{"prompt": "\\ud800"}')
    assert reply.status_code == 400
