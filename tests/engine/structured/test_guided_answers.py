"""Guided requests through the engine: whatever the logits say, the answer has its form."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import DeadlineError
from energyopt.core.records import FinishReason
from energyopt.core.units import Bytes
from engine.batch import CacheShape
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from engine.request import SamplingParams
from engine.structured.ports import Guide, GuideError, GuideSpec

TOKENIZER = FakeTokenizer()
Answer = tuple[str, FinishReason | None, int]


@pytest.fixture(scope="module")
def front() -> Iterator[EngineFront]:
    """Random logits, and so few blocks that requests are preempted."""
    runner = FakeRunner(CacheShape(80, 4, Bytes(1)), random_vocab=TOKENIZER.vocab_size + 5)
    config = EngineConfig(model="fake", max_num_seqs=6, kv=KvConfig(block_tokens=4))
    made = EngineFront(config, runner, TOKENIZER, max_model_len=300, clock=MonotonicClock())
    yield made
    assert made.stats().blocks_used == 0
    made.close()


async def ask(front: EngineFront, name: str, **params: Any) -> Answer:
    options = {"max_tokens": 280, "seed": 1, **params}
    text, reason, count = "", None, 0
    async for output in front.generate([1, 2, 3], SamplingParams(**options), request_id=name):
        text, reason, count = text + output.text, output.finish_reason, count + len(output.token_ids)
    return text, reason, count


def schema(*, depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas whose answers are short, whatever the model prefers."""
    leaves: st.SearchStrategy[dict[str, Any]] = st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(
            lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
            st.integers(-99, 99),
            st.integers(0, 99),
        ),
        st.builds(lambda size: {"type": "string", "maxLength": size}, st.integers(0, 4)),
        st.builds(lambda words: {"enum": words}, st.lists(st.text('ab"\\é\n', max_size=3), min_size=1, max_size=3)),
        st.just({"type": "string", "pattern": "^[a-c]{1,3}$"}),
    )
    if not depth:
        return leaves
    inner = schema(depth=depth - 1)
    names = st.sampled_from(("a", "b c", "é"))
    return st.one_of(
        leaves,
        st.builds(lambda items, size: {"type": "array", "items": items, "maxItems": size}, inner, st.integers(0, 2)),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(
            lambda of: {"type": "object", "properties": of, "required": sorted(of)[:1], "additionalProperties": False},
            st.dictionaries(names, inner, max_size=2),
        ),
    )


def compact(wanted: dict[str, Any]) -> str:
    """Without white space, which random logits would fill the answer with."""
    return json.dumps({**wanted, "x-guidance": {"whitespace_flexible": False}})


@settings(max_examples=12, deadline=None)
@given(st.lists(schema(), min_size=1, max_size=4), st.integers(0, 2**31), st.sampled_from((0.0, 1.0, 5.0)))
def test_every_answer_parses_and_fits_its_schema(
    front: EngineFront, schemas: list[dict[str, Any]], seed: int, temperature: float
) -> None:
    """Mixed with free requests in one batch, under preemption."""

    async def all_of_them() -> list[Answer]:
        guided = [
            ask(front, str(n), guide=GuideSpec("json_schema", compact(one)), seed=seed, temperature=temperature)
            for n, one in enumerate(schemas)
        ]
        return await asyncio.gather(*guided, ask(front, "free", seed=seed, ignore_eos=True, max_tokens=30))

    *answers, free = asyncio.run(all_of_them())
    assert free[1:] == (FinishReason.LENGTH, 30)
    for wanted, (text, reason, _) in zip(schemas, answers, strict=True):
        assert reason is FinishReason.STOP
        assert jsonschema_rs.is_valid(wanted, json.loads(text)), text


async def test_the_form_ends_the_answer_without_a_token_for_the_end(front: EngineFront) -> None:
    guide = GuideSpec("choice", '["red"]')
    assert await ask(front, "a", guide=guide, ignore_eos=True) == ("red", FinishReason.STOP, 3)
    assert await ask(front, "b", guide=guide, max_tokens=2) == ("re", FinishReason.LENGTH, 2)
    assert await ask(front, "c", guide=guide, stop=("e",)) == ("r", FinishReason.STOP, 2)
    text, reason, _ = await ask(front, "d", guide=GuideSpec("regex", "(ab)*"), min_tokens=6, temperature=0)
    assert (len(text) >= 6, reason) == (True, FinishReason.STOP)


async def test_an_end_of_text_where_the_form_allows_it_is_no_part_of_it(front: EngineFront) -> None:
    answers = [await ask(front, "a", guide=GuideSpec("regex", "(a|b)*"), seed=seed) for seed in range(5)]
    assert all(set(text) <= {"a", "b"} and reason is FinishReason.STOP for text, reason, _ in answers)
    assert all(count == len(text) + 1 for text, _, count in answers)


async def test_a_form_may_begin_after_a_marker(front: EngineFront) -> None:
    """Random text does not hold the marker, so it is biased towards its bytes."""
    guide = GuideSpec("choice", '["red", "blue"]', after="!")
    bias = ((ord("!"), 12.0),)
    for seed in range(5):
        text, reason, _ = await ask(front, "a", guide=guide, seed=seed, logit_bias=bias, skip_special_tokens=False)
        thought, marker, answer = text.partition("!")
        assert (marker, reason) == ("!", FinishReason.STOP)
        assert answer in ("red", "blue")
        assert "<|end|>" not in thought


async def test_a_bad_form_is_refused_and_nothing_is_admitted(front: EngineFront) -> None:
    before = front.stats().prompt_tokens
    with pytest.raises(GuideError, match="foo"):
        await ask(front, "a", guide=GuideSpec("json_schema", '{"type": "foo"}'))
    assert front.stats().prompt_tokens == before
    assert (await ask(front, "a", guide=GuideSpec("choice", '["x"]')))[0] == "x"


class NeverMaker:
    """Satisfies ``GuideMaker`` for as long as nobody lets it go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def make(self, spec: GuideSpec) -> Guide:
        self.go_on.wait(20)
        raise GuideError("too late")


async def test_a_request_has_its_time_limit_while_its_form_is_compiled_too() -> None:
    maker = NeverMaker()
    config = EngineConfig(model="fake")
    front = EngineFront(config, FakeRunner(), TOKENIZER, max_model_len=300, clock=MonotonicClock(), guides=maker)
    with pytest.raises(DeadlineError, match=r"0.02 s"):
        await ask(front, "a", guide=GuideSpec("choice", '["x"]'), timeout=0.02)
    maker.go_on.set()
    front.close()


async def test_a_guided_request_can_be_left_at_any_time(front: EngineFront) -> None:
    for _ in range(5):
        async for output in front.generate(
            [1], SamplingParams(max_tokens=200, guide=GuideSpec("regex", "a{150}")), request_id="a"
        ):
            assert set(output.text) <= {"a"}
            break
        for _ in range(5000):
            if not front.stats().running:
                break
            await asyncio.sleep(0.001)
    assert front.stats().blocks_used == 0


def test_a_guide_that_gives_up_ends_its_request_alone(make_rig: Callable[..., Any]) -> None:
    from engine.structured.fake import FakeGuide

    rig = make_rig()  # a runner that heeds no mask
    bad, good = rig.add([1, 2]), rig.add([3, 4])
    bad.guide = FakeGuide([b"\x00"], 256, 260)
    rig.drain()
    assert (bad.finish_reason, len(bad.output)) == (FinishReason.ERROR, 1)
    assert good.finish_reason is FinishReason.LENGTH
