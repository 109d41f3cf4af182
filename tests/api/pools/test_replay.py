"""A stream that breaks off anywhere and is asked for again reaches the client once and whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pools.replay import DONE, Replay, StreamBrokeError, StreamDiffersError


def stream(call: str, *texts: str) -> bytes:
    events = [f"data: {json.dumps({'id': call, 'choices': [{'text': text}]})}\n\n".encode() for text in texts]
    return b"".join(events) + DONE + b"\n\n"


@given(
    texts=st.lists(st.text(max_size=4), max_size=8),
    cuts=st.lists(st.integers(0, 600), max_size=3),
    grain=st.integers(1, 50),
)
def test_whatever_breaks_where_the_client_gets_the_first_calls_stream(
    texts: list[str], cuts: list[int], grain: int
) -> None:
    replay, got = Replay(), b""
    for number, cut in enumerate([*cuts, 10**6]):
        if number:
            replay.again()
        if replay.done:
            break
        sent = stream(f"call-{number}", *texts)[:cut]
        for at in range(0, len(sent), grain):
            got += replay.feed(sent[at : at + grain])
    replay.end()
    events = [json.loads(line.removeprefix(b"data: ")) for line in got.split(b"\n\n")[:-2]]
    assert [event["choices"][0]["text"] for event in events] == texts
    assert len({event["id"] for event in events}) <= 1
    assert got.endswith(DONE + b"\n\n")


def test_an_untouched_stream_passes_byte_for_byte() -> None:
    sent = stream("a", "x", "y")
    assert Replay().feed(sent) == sent


def test_another_text_is_not_patched_on() -> None:
    replay = Replay()
    replay.feed(stream("a", "one", "two")[:80])
    replay.again()
    with pytest.raises(StreamDiffersError):
        replay.feed(stream("b", "ONE", "two"))


@pytest.mark.parametrize(
    ("kind", "code", "breaks"),
    [
        ("server_error", "engine_unavailable", True),
        ("invalid_request_error", "invalid_value", False),
        ("server_error", "deadline_exceeded", False),
    ],
)
def test_errors_of_the_engine_are_tried_again_and_the_clients_are_not(kind: str, code: str, breaks: bool) -> None:
    event = b'event: error\ndata: {"error": {"type": "%b", "code": "%b"}}\n\n' % (kind.encode(), code.encode())
    if breaks:
        with pytest.raises(StreamBrokeError):
            Replay().feed(event)
    else:
        assert Replay().feed(event) == event


def test_an_end_without_a_last_word_is_a_break() -> None:
    replay = Replay()
    replay.feed(stream("a", "x")[:-20])
    with pytest.raises(StreamBrokeError):
        replay.end()
