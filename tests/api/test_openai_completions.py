"""Plain completions through the official client against the real server."""

from __future__ import annotations

from typing import Any

MODEL = "fake-model"
HELLO: Any = [{"role": "user", "content": "Hello"}]


def test_plain_completions_take_all_four_forms_of_a_prompt(served: Any) -> None:
    with served.client() as client:
        forms: list[Any] = ["ab", ["ab", "xyz"], [97, 98], [[97, 98], [120, 121, 122]]]
        one, two, one_ids, two_ids = (
            client.completions.create(model=MODEL, prompt=form, max_tokens=6, temperature=0) for form in forms
        )
    assert one.object == "text_completion"
    assert one.choices[0].text == one_ids.choices[0].text == two.choices[0].text == two_ids.choices[0].text
    assert two.choices[1].text == two_ids.choices[1].text
    assert two.usage.prompt_tokens == 5
    assert two.usage.completion_tokens == 12


def test_a_plain_completion_has_sixteen_tokens_by_default(served: Any) -> None:
    with served.client() as client:
        assert client.completions.create(model=MODEL, prompt="ab").usage.completion_tokens == 16


def test_a_streamed_completion_is_the_whole_text_in_parts(served: Any) -> None:
    with served.client() as client:
        whole = client.completions.create(model=MODEL, prompt=["ab", "cd"], n=2, max_tokens=9, seed=3)
        chunks = list(
            client.completions.create(model=MODEL, prompt=["ab", "cd"], n=2, max_tokens=9, seed=3, stream=True)
        )
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    texts = dict.fromkeys(range(4), "")
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {choice.index: choice.text for choice in whole.choices}


def test_completion_logprobs(served: Any) -> None:
    with served.client() as client:
        reply = client.completions.create(model=MODEL, prompt="ab", max_tokens=3, temperature=0, logprobs=2)
        chunks = list(
            client.completions.create(model=MODEL, prompt="ab", max_tokens=3, temperature=0, logprobs=2, stream=True)
        )
    logprobs = reply.choices[0].logprobs
    assert "".join(logprobs.tokens) == reply.choices[0].text
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.text_offset == [0, 1, 2]
    assert all(top[token] == -0.5 for top, token in zip(logprobs.top_logprobs, logprobs.tokens, strict=True))
    assert [offset for chunk in chunks for offset in chunk.choices[0].logprobs.text_offset] == [0, 1, 2]


def test_characters_of_several_tokens_arrive_whole(serve_it: Any, engine_that_says: Any) -> None:
    text = "héé €5 🎉!"
    with serve_it(engine=engine_that_says(text)).client() as client:
        chunks = list(client.completions.create(model=MODEL, prompt="x", max_tokens=len(text.encode()), stream=True))
    parts = [chunk.choices[0].text for chunk in chunks]
    assert "".join(parts) == text
    assert all("�" not in part for part in parts)


def test_an_echo_with_logprobs_tells_how_likely_the_prompt_was(served: Any) -> None:
    wish: Any = {"model": MODEL, "prompt": "abc", "temperature": 0, "logprobs": 2, "echo": True}
    with served.client() as client:
        plain = client.completions.create(**{**wish, "echo": False}, max_tokens=3)
        whole = client.completions.create(**wish, max_tokens=3)
        alone = client.completions.create(**wish, max_tokens=0)
        one = client.completions.create(**{**wish, "prompt": "a"}, max_tokens=0)
        chunks = list(client.completions.create(**wish, max_tokens=3, stream=True))
    answer, found = plain.choices[0].text, whole.choices[0].logprobs
    assert whole.choices[0].text == f"abc{answer}"
    assert found.tokens == ["a", "b", "c", *answer]
    assert found.token_logprobs[0] is found.top_logprobs[0] is None
    assert all(value in (-0.5, -0.75) for value in found.token_logprobs[1:3])
    assert found.token_logprobs[3:] == plain.choices[0].logprobs.token_logprobs
    assert found.text_offset == [0, 1, 2, 3, 4, 5]
    assert all(
        top[token] == value
        for top, token, value in zip(found.top_logprobs[1:], found.tokens[1:], found.token_logprobs[1:], strict=True)
    )
    assert (alone.choices[0].text, alone.choices[0].finish_reason) == ("abc", "length")
    assert alone.choices[0].logprobs.token_logprobs == found.token_logprobs[:3]
    assert (alone.usage.prompt_tokens, alone.usage.completion_tokens) == (3, 0)
    assert one.choices[0].logprobs.token_logprobs == [None]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [getattr(chunk.choices[0].logprobs, name) for chunk in chunks]
        assert [entry for part in parts for entry in part] == getattr(found, name)


def test_an_echo_alone_needs_no_token(served: Any) -> None:
    with served.client() as client:
        whole = client.completions.create(model=MODEL, prompt=["ab", "cd"], max_tokens=0, echo=True)
        chunks = list(client.completions.create(model=MODEL, prompt=["ab", "cd"], max_tokens=0, echo=True, stream=True))
    assert [choice.text for choice in whole.choices] == ["ab", "cd"]
    assert all(choice.logprobs is None for choice in whole.choices)
    assert sorted("".join(chunk.choices[0].text for chunk in chunks)) == sorted("abcd")
