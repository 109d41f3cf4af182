"""The contract of guides, for the real ones and the fake; what is refused; what is kept."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import EngineDeadError
from engine.fake import FakeTokenizer
from engine.structured.fake import FakeGuides
from engine.structured.grammars import MAX_SOURCE
from engine.structured.llg import LlGuides
from engine.structured.ports import Guide, GuideError, GuideMaker, GuideSpec
from engine.structured.shelf import GuideShelf

TOKENIZER = FakeTokenizer()
END = 256
MAKERS: dict[str, Callable[[], GuideMaker]] = {"real": lambda: LlGuides(TOKENIZER), "fake": FakeGuides}


@pytest.fixture(scope="module", params=MAKERS)
def maker(request: pytest.FixtureRequest) -> GuideMaker:
    return MAKERS[request.param]()


@pytest.fixture(scope="module")
def real() -> LlGuides:
    return LlGuides(TOKENIZER)


def choices(*texts: str) -> GuideSpec:
    return GuideSpec("choice", json.dumps(texts))


def allowed(guide: Guide) -> set[int]:
    bits = np.unpackbits(np.frombuffer(guide.allowed(), dtype=np.uint8), bitorder="little")
    return {int(token) for token in np.flatnonzero(bits)}


def feed(guide: Guide, text: str) -> Guide:
    for byte in text.encode():
        guide.advance(byte)
    return guide


def state(guide: Guide) -> tuple[bool, str | None]:
    return guide.finished, guide.failure


def test_a_choice_is_followed_to_its_end(maker: GuideMaker) -> None:
    guide = maker.make(choices("red", "rose", "blue"))
    assert allowed(guide) == {ord("r"), ord("b")}
    feed(guide, "ro")
    assert allowed(guide) == {ord("s")}
    assert state(guide) == (False, None)
    feed(guide, "se")
    assert state(guide) == (True, None)
    assert guide.failure is None


def test_a_text_that_may_end_or_go_on(maker: GuideMaker) -> None:
    guide = feed(maker.make(choices("a", "ab")), "a")
    assert state(guide) == (False, None)
    assert allowed(guide) == {END, ord("b")}
    guide.advance(END)
    assert state(guide) == (True, None)


def test_a_token_that_is_not_allowed_fails_for_good_and_says_why(maker: GuideMaker) -> None:
    guide = feed(maker.make(choices("ab")), "x")
    assert guide.failure
    assert "\n" not in guide.failure
    assert allowed(guide) == {END}, "a mask always allows something"
    guide.advance(ord("a"))
    assert guide.failure


def test_a_fork_goes_its_own_way(maker: GuideMaker) -> None:
    guide = feed(maker.make(choices("abc", "abd")), "a")
    fork = guide.fork()
    feed(fork, "bc")
    assert fork.finished
    assert allowed(guide) == {ord("b")}
    feed(guide, "x")
    assert fork.failure is None


TEXTS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4), min_size=1)


@settings(deadline=None)
@given(TEXTS, st.data())
def test_the_real_guide_allows_what_its_obvious_twin_allows(texts: list[str], data: st.DataObject) -> None:
    real, fake = _REAL.make(choices(*texts)), FakeGuides().make(choices(*texts))
    for _ in range(20):
        assert real.finished == fake.finished
        if real.finished:
            break
        possible = allowed(real)
        assert possible == allowed(fake)
        token = data.draw(st.sampled_from(sorted(possible)))
        real.advance(token)
        fake.advance(token)
        assert real.failure is fake.failure is None


_REAL = LlGuides(TOKENIZER)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (GuideSpec("json_object"), '{"a": [1, {"b": null}]}'),
        (GuideSpec("json_schema", '{"type": "array", "items": {"type": "integer"}}'), "[1, 2]"),
        (GuideSpec("json_schema", '{"enum": ["é", 3]}'), '"é"'),
        (GuideSpec("json_schema", "true"), "[1]"),
        (GuideSpec("regex", r"[0-9]{3}-[a-z]+"), "123-ab"),
        (GuideSpec("grammar", 'start: "a" start | "b"'), "aab"),
        (GuideSpec("grammar", 'root ::= "x" root | "y"'), "xxy"),
    ],
)
def test_each_kind_takes_a_text_of_its_form(real: LlGuides, spec: GuideSpec, text: str) -> None:
    guide = real.make(spec)
    for byte in text.encode():
        assert byte in allowed(guide)
        guide.advance(byte)
    assert guide.finished or END in allowed(guide)
    assert guide.failure is None


def test_an_expression_that_explodes_is_given_up_soon(real: LlGuides) -> None:
    start = time.thread_time()
    guide = real.make(GuideSpec("regex", "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"))
    for _ in range(40):
        guide.allowed()
        guide.advance(ord("a"))
    assert time.thread_time() - start < 4
    assert guide.failure
    assert allowed(guide) == {END}


RECURSIVE = '{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}'


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (GuideSpec("json_schema", "{"), "cannot be"),
        (GuideSpec("json_schema", '{"type": "foo"}'), "foo"),
        (GuideSpec("json_schema", "false"), "object"),
        (GuideSpec("json_schema", '{"not": {}}'), "not"),
        (GuideSpec("json_schema", '{"$ref": "#/nowhere"}'), "nowhere"),
        (GuideSpec("json_schema", '{"$ref": "http://example.com/s"}'), "example.com"),
        (GuideSpec("json_schema", '{"$ref": "#"}'), "no text satisfies"),
        (GuideSpec("json_schema", RECURSIVE), "no text satisfies"),
        (GuideSpec("json_schema", '{"anyOf":' * 500 + "[true]" + "}" * 500), "cannot be"),
        (GuideSpec("json_schema", json.dumps({"enum": [f"value {n}" for n in range(100_000)]})), "characters"),
        (GuideSpec("regex", "(a"), "regex"),
        (GuideSpec("regex", "(?=a)b"), "regex"),
        (GuideSpec("choice", "[]"), "choices"),
        (GuideSpec("choice", '["a", ""]'), "at least one"),
        (GuideSpec("choice", '["a", 1]'), "text"),
        (GuideSpec("grammar", 'start: "a" other'), "other"),
        (GuideSpec("grammar", "start: start"), "cannot be"),
        (GuideSpec("grammar", "a" * (MAX_SOURCE + 1)), "characters"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_sentence_and_soon(
    real: LlGuides, spec: GuideSpec, word: str
) -> None:
    start = time.thread_time()
    with pytest.raises(GuideError) as refusal:
        real.make(spec)
    assert time.thread_time() - start < 2
    message = refusal.value.message
    assert word in message
    assert message.startswith("response_format ")
    assert message.endswith(".")
    assert "\n" not in message
    assert refusal.value.param == "response_format"


async def test_a_form_that_comes_again_is_copied_not_compiled() -> None:
    maker = FakeGuides()
    shelf = GuideShelf(maker)
    first, second = await shelf.guide(choices("ab")), await shelf.guide(choices("ab"))
    feed(first, "ab")
    assert first.finished
    assert not second.finished
    assert maker.made == 1
    await asyncio.gather(*(shelf.guide(choices("cd")) for _ in range(20)))
    assert maker.made == 2
    shelf.close()


async def test_the_shelf_is_bounded_and_remembers_no_failure() -> None:
    maker = FakeGuides()
    shelf = GuideShelf(maker, kept=3)
    for number in range(10):
        await shelf.guide(choices(str(number)))
    assert len(shelf) == 3
    await shelf.guide(choices("9"))
    assert maker.made == 10
    for _ in range(2):
        with pytest.raises(GuideError):
            await shelf.guide(GuideSpec("regex", "a"))
    assert len(shelf) == 3
    for number in range(9):
        await shelf.guide(choices("x" * 2**20 + str(number)))
    assert len(shelf) <= 3
    shelf.close()
    shelf.close()
    with pytest.raises(EngineDeadError):
        await shelf.guide(choices("new"))
