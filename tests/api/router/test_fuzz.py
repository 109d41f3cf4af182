"""Whatever a body or header says, it comes out as it went in, and the view of it never fails."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.router.view import USUAL_OUTPUT, View, view_of

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
KNOWN = ("model", "messages", "prompt", "input", "session_id", "stream", "tools", "max_tokens", "vllm_xargs")
NAMES = st.sampled_from((*KNOWN, "instructions")) | st.text(max_size=8)
FIELDS = ("role", "content", "reasoning_content", "tool_calls", "name", "new")
MESSAGES = st.lists(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4), max_size=4)
BODIES = st.dictionaries(NAMES, VALUES | MESSAGES | st.lists(st.integers(-5, 2**33), max_size=40), max_size=6).map(
    lambda body: json.dumps(body, ensure_ascii=len(body) % 2 == 0).encode(errors="surrogatepass")
) | st.binary(max_size=200)
TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\\"), max_size=30)
HEADERS = st.dictionaries(st.from_regex(r"x-f[a-z0-9-]{1,12}", fullmatch=True), TEXT, max_size=5)


@pytest.fixture(scope="module")
def echoing(shared_world: Any) -> Any:
    backend = shared_world.backend()
    return backend, shared_world.router(backend, policy="session")


@given(body=BODIES, headers=HEADERS, session=st.none() | TEXT)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_in_are_bytes_out(echoing: Any, body: bytes, headers: dict[str, str], session: str | None) -> None:
    backend, router = echoing
    connection = http.client.HTTPConnection(router.url.removeprefix("http://"), timeout=10)
    sent = dict(headers) if session is None else {**headers, "x-session-affinity": session}
    connection.request("POST", "/v1/chat/completions", body, {**sent, "content-type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200
    assert reply.read() == body
    connection.close()
    seen = backend.seen[-1]
    assert seen.body == body
    assert all(seen.header(name) == [value.strip()] for name, value in sent.items())


@given(body=BODIES)
@settings(max_examples=60, deadline=None)
def test_a_view_never_fails(body: bytes) -> None:
    view = view_of(body, [])
    assert 0 <= view.output_tokens <= USUAL_OUTPUT
    assert view.prompt.tokens >= 0
    view.prompt.chunks()


def looks(document: object, *headers: tuple[bytes, bytes]) -> View:
    return view_of(json.dumps(document).encode(), headers)


def test_what_a_view_reads() -> None:
    view = looks({"model": "m", "stream": True, "max_tokens": 7, "session_id": "s", "prompt": [1, 2, 3]})
    assert (view.model, view.stream, view.output_tokens, view.session) == ("m", True, 7, "s")
    assert list(view.prompt.ids or ()) == [1, 2, 3]
    assert looks({"prompt": [[4, 5], [6]]}).prompt.tokens == 2
    assert looks({"prompt": ["abcd" * 4, "x"]}).prompt.tokens == 4
    assert looks({"input": "abcd" * 4, "instructions": "be"}).prompt.text.startswith(b"be\0abcd")
    assert looks({"prompt": [1, -1]}).prompt.ids is None


@pytest.mark.parametrize(
    ("body", "headers", "session"),
    [
        ({"session_id": "body"}, [(b"x-session-id", b"header")], "body"),
        ({"vllm_xargs": {"session_id": "extra"}}, [(b"x-session-id", b"header")], "extra"),
        ({}, [(b"x-correlation-id", b"c"), (b"x-session-affinity", b"a")], "a"),
        ({"session_id": 5}, [(b"x-correlation-id", b"c")], "c"),
        ({}, [(b"x-session-id", b"")], None),
    ],
)
def test_where_a_session_is_found(body: object, headers: list[tuple[bytes, bytes]], session: str | None) -> None:
    assert looks(body, *headers).session == session


def test_a_conversation_keeps_its_beginning_when_it_grows() -> None:
    first = [{"role": "system", "content": "s" * 600}, {"role": "user", "content": "u" * 600}]
    more = [
        *first,
        {"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]},
        {"role": "user", "content": "v"},
    ]
    one, two = (looks({"messages": messages}).prompt for messages in (first, more))
    assert two.chunks()[: len(one.chunks())] == one.chunks()
    assert len(one.chunks()) == 4
    other = looks({"messages": more, "tools": [{"name": "t"}]}).prompt
    assert other.chunks()[0] != two.chunks()[0]
