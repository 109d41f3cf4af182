"""The contract of guides, for the real ones and the fake; what is refused; what is kept."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import EngineDeadError, OverloadedError
from energyopt.core.units import Seconds
from engine.fake import FakeTokenizer
from engine.structured.fake import FakeGuides
from engine.structured.grammars import MAX_SOURCE
from engine.structured.llg import LlGuides
from engine.structured.ports import Guide, GuideError, GuideMaker, GuideSpec
from engine.structured.shelf import GuideShelf
from engine.structured.written_out import repeated_signs

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


TEXTS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4), min_size=1, max_size=5
)


@settings(deadline=None, max_examples=30)
@given(TEXTS, st.data())
def test_the_real_guide_allows_what_its_obvious_twin_allows(texts: list[str], data: st.DataObject) -> None:
    real, fake = _REAL.make(choices(*texts)), FakeGuides().make(choices(*texts))
    for _ in range(9):
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


SCHEMA_WORDS = (
    *("type", "properties", "items", "enum", "const", "anyOf", "allOf", "$ref", "$defs", "required", "minimum"),
    *("pattern", "format", "minLength", "maxItems", "additionalProperties", "prefixItems", "not", "multipleOf"),
)
LAUGHS = "start: T0\n" + "".join(f"T{n}: T{n + 1} T{n + 1}\n" for n in range(30)) + 'T30: "a"'
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
        (GuideSpec("grammar", "*"), "Expected name"),
        (GuideSpec("grammar", 'a ::= "b"'), "root"),
        (GuideSpec("grammar", 'root ::= "\\'), "cannot be read"),
        (GuideSpec("regex", "a{4000000000}"), "4000000000"),
        (GuideSpec("regex", "a{0000000000004000000000}"), "4000000000"),
        (GuideSpec("regex", "a{0000000000000999999,00000000000009999999}"), "repetitions"),
        (GuideSpec("regex", "(ab{999}|c){9999}"), "repetitions"),
        (GuideSpec("grammar", "start: /(abc){90000}/"), "repetitions"),
        (GuideSpec("grammar", "start: /a{0000000000000999999}/"), "repetitions"),
        (GuideSpec("grammar", 'start: A\nA: "a"{999999}'), "repetitions"),
        (GuideSpec("grammar", 'start: A\nA: "a"~0000000000000999999'), "repetitions"),
        (GuideSpec("grammar", 'start: A\nA: B{1000}\nB: C~1000\nC: "a"'), "repetitions"),
        (GuideSpec("grammar", 'start: %json {"pattern": "^a\\u007b999999}$"}'), "repetitions"),
        (GuideSpec("grammar", LAUGHS), "repetitions"),
        (GuideSpec("grammar", "root ::= a\na ::= [b]{1000000}"), "repetitions"),
        (GuideSpec("grammar", "start: A\nA: B\nB: A"), "needs itself"),
        (GuideSpec("json_schema", '{"anyOf": [{"pattern": "^a{1000000}$"}]}'), "repetitions"),
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(SCHEMA_WORDS), inner, max_size=4),
    max_leaves=8,
)
SIGNS = [*'ab(|)*+?{}[]^$.\\-0,<>=!:/#"\n ', "{2}", "{999999}", "\\p{L}", "root ::= ", "start: ", "\\x", "%json"]
ANY = st.lists(st.sampled_from(SIGNS) | st.text(max_size=2), max_size=10).map("".join)
WISHES = st.one_of(
    st.builds(GuideSpec, st.just("json_schema"), JSON.map(json.dumps) | ANY),
    st.builds(GuideSpec, st.sampled_from(("regex", "grammar", "choice")), ANY),
    st.builds(GuideSpec, st.just("choice"), JSON.map(json.dumps)),
)


@settings(deadline=None, max_examples=80)
@given(WISHES)
def test_whatever_is_asked_for_makes_a_guide_or_a_refusal(spec: GuideSpec) -> None:
    try:
        guide = _REAL.make(spec)
    except GuideError:
        return
    for _ in range(4):
        if guide.finished or guide.failure is not None:
            break
        guide.advance(min(allowed(guide)))


@pytest.mark.parametrize(
    ("expression", "signs"),
    [
        ("abc", 0),
        ("a{3}", 3),
        ("a{3}b{4}", 7),
        ("(ab){3}", 6),
        ("(a{3}b){2}", 3 + 8),
        ("[a-z]{5}", 5),
        (r"\p{L}{5}", 5),
        (r"\{5}", 0),
        ("a{0,9}", 0),
        ("a{2,9}", 2),
        ("((a|b){2}){3}", 6 + 18),
        ("[\\]{9}]{2}", 2),
        ("a{", 0),
        (")){3}", 3),
        ("a{99999999}{99999999}", 99999999 + 99999999**2),
        pytest.param("a{" + "0" * 5000 + "3,9}", 3, id="many zeros"),
        pytest.param("a{" + "9" * 5000 + "}", 10**18, id="many nines"),
    ],
)
def test_repetitions_are_counted_as_if_written_out(expression: str, signs: int) -> None:
    assert repeated_signs(expression) == signs


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


class SlowMaker:
    """Makes what a fake makes, once it is told to go on; satisfies ``GuideMaker``."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.inner = FakeGuides()

    def make(self, spec: GuideSpec) -> Guide:
        self.begun.set()
        assert self.go_on.wait(20)
        return self.inner.make(spec)


async def wait_for(shelf: GuideShelf, spec: GuideSpec) -> asyncio.Task[Guide]:
    """A request that waits for its form."""
    task = asyncio.create_task(shelf.guide(spec))
    await asyncio.sleep(0)
    return task


async def test_the_queue_is_bounded_and_who_leaves_it_leaves_nothing_behind() -> None:
    maker = SlowMaker()
    shelf = GuideShelf(maker, queued=3)
    first, same = await wait_for(shelf, choices("a")), await wait_for(shelf, choices("a"))
    others = [await wait_for(shelf, choices(name)) for name in "bc"]
    assert shelf.queued == 3, "one form is one place, however many wait for it"
    with pytest.raises(OverloadedError, match="3 forms wait"):
        await shelf.guide(choices("d"))
    assert maker.begun.wait(20)
    for task in (first, others[0]):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert shelf.queued == 2, "b was not begun, a is waited for by another"
    maker.go_on.set()
    assert allowed(await same) == {ord("a")}
    assert allowed(await others[1]) == {ord("c")}
    assert (shelf.queued, maker.inner.made) == (0, 2)
    shelf.close()


async def test_nobody_waits_for_ever_and_closing_ends_the_waiting() -> None:
    maker = SlowMaker()
    shelf = GuideShelf(maker)
    with pytest.raises(OverloadedError, match=r"not compiled within 0.01 s") as refusal:
        await shelf.guide(choices("a"), Seconds(0.01))
    assert refusal.value.retry_after > 0
    waiting = await wait_for(shelf, choices("b"))
    shelf.close()
    maker.go_on.set()
    with pytest.raises(EngineDeadError):
        await waiting
    assert maker.inner.made == 1
    with pytest.raises(EngineDeadError):
        await shelf.guide(choices("c"))
