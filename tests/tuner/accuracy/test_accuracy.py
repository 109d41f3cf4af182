"""The accuracy gate: each check passes for equals, fails for what it is there to catch, and knows when it is idle."""

from __future__ import annotations

import json
from typing import Any

import pytest

from energyopt.core.errors import EngineError
from tuner.accuracy.answers import Answer, Answers, Token, ToolCall, collect
from tuner.accuracy.checks import AccuracyReport, Check, Thresholds, f1_of, fits, judge
from tuner.accuracy.questions import PERSON, TOOL_SCHEMAS, WITH_TOOLS, needles

Json = dict[str, Any]


class Model:
    """A chat server in a function: answers by rule, with tools and schemas if ``able``."""

    def __init__(self, *, able: bool = True, shift: float = 0.0, **faults: bool) -> None:
        self.able, self.shift, self.faults = able, shift, faults
        self.bodies: list[Json] = []

    def __call__(self, body: Json) -> tuple[int, Json]:
        self.bodies.append(body)
        if not self.able and ("tools" in body or "response_format" in body):
            return 400, {"error": {"message": "no"}}
        text = str(body["messages"][0]["content"])
        message: Json = {"content": self.text(text, body)}
        finish = "stop"
        if "tools" in body and "no tool" not in text and not self.faults.get("no_calls"):
            message, finish = self.call(text), "tool_calls"
        if self.faults.get("reasons"):
            message["reasoning_content"] = "because"
        reply: Json = {"message": message, "finish_reason": finish}
        if body.get("logprobs"):
            reply["logprobs"] = {"content": self.tokens(str(message["content"]))}
        return 200, {"choices": [reply]}

    def text(self, text: str, body: Json) -> str:
        if "secret number" in text:
            return "none" if self.faults.get("forgets") else text.split("secret number is ")[1].split(".")[0]
        if "response_format" in body:
            return "{oops" if self.faults.get("bad_json") else json.dumps({"name": "Ada", "age": 36})
        words = f"answer to {text}".split()
        if self.faults.get("other"):
            words[3] = "something"
        leak = "<think> " if self.faults.get("leaks") else ""
        return leak + " ".join(words)

    def call(self, text: str) -> Json:
        adds = "Add" in text
        arguments: Json = {"numbers": [1, 2]} if adds else {"city": "Oslo"}
        if self.faults.get("bad_arguments"):
            arguments = {"town": 5}
        function = {"name": "add" if adds else "weather", "arguments": json.dumps(arguments)}
        return {"content": "", "tool_calls": [{"id": "" if self.faults.get("no_ids") else "c1", "function": function}]}

    def tokens(self, text: str) -> list[Json]:
        gap = 0.01 if self.faults.get("ties") else 2.0
        return [
            {
                "token": word,
                "logprob": -0.1 + self.shift,
                "top_logprobs": [{"token": word, "logprob": -0.1}, {"token": "x", "logprob": -0.1 - gap}],
            }
            for word in text.split()
        ]


def answers(**faults: Any) -> Answers:
    return collect(Model(**faults), "m", prompts=4, words=60)


def check(report: AccuracyReport, name: str) -> Check:
    return next(one for one in report.checks if one.name == name)


def test_equal_configurations_pass_everything() -> None:
    report = judge(answers(), answers())
    assert report.passed
    assert report.reason == ""
    applied = {one.name for one in report.checks if one.passed is not None}
    assert applied == {
        "greedy tokens",
        "log-probabilities",
        "tool calls",
        "tool arguments",
        "tool call ids",
        "JSON by schema",
        "needle recall",
    }


@pytest.mark.parametrize(
    ("faults", "name"),
    [
        ({"other": True}, "greedy tokens"),
        ({"shift": 0.5}, "log-probabilities"),
        ({"leaks": True}, "reasoning apart"),
        ({"no_calls": True}, "tool calls"),
        ({"bad_arguments": True}, "tool arguments"),
        ({"no_ids": True}, "tool call ids"),
        ({"bad_json": True}, "JSON by schema"),
        ({"forgets": True}, "needle recall"),
        ({"able": False}, "tool calls"),
    ],
)
def test_what_is_worse_than_the_baseline_fails(faults: dict[str, Any], name: str) -> None:
    report = judge(answers(), answers(**faults))
    assert check(report, name).passed is False
    assert not report.passed
    assert name in report.reason


def test_what_the_baseline_cannot_do_does_not_apply() -> None:
    report = judge(answers(able=False), answers(able=False))
    assert report.passed
    assert check(report, "tool calls").passed is None
    assert "refuses tools" in check(report, "tool calls").detail
    assert check(report, "JSON by schema").passed is None
    assert check(judge(answers(forgets=True), answers()), "needle recall").passed is None


def test_reasoning_that_is_lost_fails() -> None:
    assert check(judge(answers(reasons=True), answers(reasons=True)), "reasoning apart").passed is True
    assert check(judge(answers(reasons=True), answers()), "reasoning apart").passed is False


def test_a_difference_at_a_near_tie_is_excused() -> None:
    tied = check(judge(answers(ties=True), answers(other=True)), "greedy tokens")
    assert tied.passed is True
    assert "4 part at a near tie" in tied.detail
    strict = judge(answers(ties=True), answers(other=True), Thresholds(tie=0.001))
    assert check(strict, "greedy tokens").passed is False


def test_thresholds_decide() -> None:
    assert judge(answers(), answers(shift=0.5), Thresholds(logprob=1.0)).passed


def test_without_logprobs_texts_are_compared() -> None:
    one = answers()
    bare = one.model_copy(update={"plain": tuple(a.model_copy(update={"tokens": ()}) for a in one.plain)})
    report = judge(bare, bare)
    assert check(report, "log-probabilities").passed is None
    assert check(report, "greedy tokens").score == 1.0


def test_different_questions_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="different questions"):
        judge(answers(), collect(Model(), "m", prompts=3, words=60))


def test_f1() -> None:
    assert f1_of([True, True, False], [True, False, False]) == pytest.approx(2 / 3)
    assert f1_of([True], []) == 0.0
    assert f1_of([False], [False]) == 1.0


@pytest.mark.parametrize(
    ("text", "good"), [('{"city": "x"}', True), ("{}", False), ("x", False), ("[" * 10_000, False)]
)
def test_arguments_fit_their_schema(text: str, good: bool) -> None:
    assert fits(text, TOOL_SCHEMAS["weather"]) is good
    assert not fits('{"name": "a"}', PERSON)


def test_needles_are_where_they_should_be() -> None:
    for needle, depth in zip(needles(200), (0.1, 0.5, 0.9), strict=True):
        assert needle.prompt.index(needle.answer) / len(needle.prompt) == pytest.approx(depth, abs=0.15)


def test_questions_are_greedy_and_seeded() -> None:
    model = Model()
    collect(model, "m", prompts=2, words=60)
    assert all(body["temperature"] == 0 for body in model.bodies)
    assert len([body for body in model.bodies if "tools" in body]) == len(WITH_TOOLS)


def test_a_broken_server_is_an_error() -> None:
    with pytest.raises(EngineError, match="answered 500"):
        collect(lambda body: (500, {}), "m")
    with pytest.raises(EngineError, match="form of a chat completion"):
        collect(lambda body: (200, {"choices": []}), "m")
    with pytest.raises(EngineError, match="refuses a plain chat"):
        collect(lambda body: (400, {}), "m")


def test_answers_come_back_from_a_recording() -> None:
    one = answers()
    assert Answers.model_validate_json(one.model_dump_json()) == one
    assert Answer(
        text="x", tokens=(Token(text="x", logprob=-1.0),), calls=(ToolCall(id="1", name="f", arguments="{}"),)
    )
