"""Compares two sets of answers, check by check. A check that does not apply says so and decides nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from statistics import fmean

import jsonschema_rs

from energyopt.core.config import Config
from energyopt.core.results import Result

from .answers import Answer, Answers, Token, ToolCall
from .questions import PERSON, TOOL_SCHEMAS, Json, needles


class Thresholds(Config):
    """What is enough; shares from 0 to 1 but for ``logprob`` (nats) and ``tie`` (nats).

    Greedy texts part at a near tie by rounding alone: a first difference where the baseline's two likeliest tokens are
    less than ``tie`` apart is excused. ``recall_drop`` and ``f1`` are against the baseline.
    """

    agreement: float = 0.9
    logprob: float = 0.1
    tie: float = 0.1
    f1: float = 0.8
    schema_share: float = 1.0
    recall_drop: float = 0.34


class Check(Result):
    """``passed`` is None where the check does not apply; ``detail`` says what was seen, or why it does not."""

    name: str
    passed: bool | None
    score: float | None
    limit: float | None
    detail: str


class AccuracyReport(Result):
    """All checks of a candidate against a baseline."""

    baseline: str
    candidate: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """No check failed, and at least one applied."""
        return all(check.passed is not False for check in self.checks) and any(check.passed for check in self.checks)

    @property
    def reason(self) -> str:
        """What failed, in a sentence; empty if nothing did."""
        return "; ".join(f"{check.name}: {check.detail}" for check in self.checks if check.passed is False)


def judge(baseline: Answers, candidate: Answers, thresholds: Thresholds | None = None) -> AccuracyReport:
    """Every check. Raises ValueError if the two were asked different questions."""
    if len(baseline.plain) != len(candidate.plain) or baseline.needle_words != candidate.needle_words:
        raise ValueError("the two configurations were asked different questions.")
    limits = thresholds or Thresholds()
    checks = (
        greedy_agreement(baseline.plain, candidate.plain, limits),
        logprob_distance(baseline.plain, candidate.plain, limits),
        reasoning_apart(baseline, candidate),
        *tool_checks(baseline.tools, candidate.tools, limits),
        structured_output(baseline.structured, candidate.structured, limits),
        needle_recall(baseline, candidate, limits),
    )
    return AccuracyReport(baseline=baseline.model, candidate=candidate.model, checks=checks)


def greedy_agreement(old: Sequence[Answer], new: Sequence[Answer], limits: Thresholds) -> Check:
    """The mean share of an answer before its first difference that is no tie."""
    shares, ties = [], 0
    for before, after in zip(old, new, strict=True):
        share, tied = _agreement(before, after, limits.tie)
        shares.append(share)
        ties += tied
    score = fmean(shares)
    whole = sum(share == 1.0 for share in shares)
    detail = f"{whole} of {len(shares)} greedy answers agree ({ties} part at a near tie); {score:.1%} of tokens"
    return Check(
        name="greedy tokens", passed=score >= limits.agreement, score=score, limit=limits.agreement, detail=detail
    )


def _agreement(before: Answer, after: Answer, tie: float) -> tuple[float, bool]:
    """Share before the first difference, and whether that difference is an excused tie (the share is then 1)."""
    if not (before.tokens and after.tokens):
        return float((before.text, before.reasoning) == (after.text, after.reasoning)), False
    common = _common(before.tokens, after.tokens)
    if common == len(before.tokens) == len(after.tokens):
        return 1.0, False
    if common < len(before.tokens) and _near_tie(before.tokens[common], tie):
        return 1.0, True
    return common / max(len(before.tokens), len(after.tokens)), False


def _common(one: Sequence[Token], two: Sequence[Token]) -> int:
    length = min(len(one), len(two))
    return next((index for index in range(length) if one[index].text != two[index].text), length)


def _near_tie(token: Token, tie: float) -> bool:
    likely = sorted(token.top.values(), reverse=True)
    return len(likely) > 1 and likely[0] - likely[1] < tie


def logprob_distance(old: Sequence[Answer], new: Sequence[Answer], limits: Thresholds) -> Check:
    """The mean absolute difference of log-probabilities over the tokens that both generated behind equal text."""
    distances = []
    for before, after in zip(old, new, strict=True):
        common = _common(before.tokens, after.tokens)
        distances += [abs(before.tokens[i].logprob - after.tokens[i].logprob) for i in range(common)]
    if not distances:
        return _not_applicable("log-probabilities", "no log-probabilities, or no common tokens")
    score = fmean(distances)
    return Check(
        name="log-probabilities",
        passed=score <= limits.logprob,
        score=score,
        limit=limits.logprob,
        detail=f"{score:.4f} nats apart on average over {len(distances)} tokens, {max(distances):.3f} at most",
    )


def reasoning_apart(baseline: Answers, candidate: Answers) -> Check:
    """Reasoning stays in its field: no marks of it in the content, and no answer loses it."""
    pairs = list(zip(baseline.plain, candidate.plain, strict=True))
    reasons = any(before.reasoning for before, _ in pairs)
    leaks = sum("<think>" in after.text or "</think>" in after.text for _, after in pairs)
    leaked_before = sum("<think>" in before.text or "</think>" in before.text for before, _ in pairs)
    lost = sum(bool(before.reasoning) and not after.reasoning for before, after in pairs)
    if not reasons and not leaks:
        return _not_applicable("reasoning apart", "the model does not reason in a field of its own")
    bad = lost + max(0, leaks - leaked_before)
    detail = f"{leaks} answers with marks of reasoning in their content, {lost} without the reasoning they had"
    return Check(name="reasoning apart", passed=bad == 0, score=float(bad), limit=0.0, detail=detail)


def tool_checks(
    old: Sequence[Answer] | None, new: Sequence[Answer] | None, limits: Thresholds
) -> tuple[Check, Check, Check]:
    """Whether tools are called when they should be, with valid arguments, under distinct ids."""
    names = ("tool calls", "tool arguments", "tool call ids")
    if old is None or not any(answer.calls for answer in old):
        why = "the baseline refuses tools" if old is None else "the baseline never calls a tool"
        first, second, third = (_not_applicable(name, why) for name in names)
        return first, second, third
    answers = new or ()
    calls = [call for answer in answers for call in answer.calls]
    valid = sum(_valid_call(call) for call in calls)
    share = valid / len(calls) if calls else 0.0
    f1 = f1_of([bool(a.calls) for a in old], [a.finish == "tool_calls" and bool(a.calls) for a in answers])
    ids = [[call.id for call in answer.calls] for answer in answers]
    distinct = bool(calls) and all(all(one) and len(set(one)) == len(one) for one in ids)
    return (
        Check(
            name=names[0], passed=f1 >= limits.f1, score=f1, limit=limits.f1, detail=f"F1 {f1:.2f} of the finish reason"
        ),
        Check(
            name=names[1],
            passed=share >= limits.schema_share,
            score=share,
            limit=limits.schema_share,
            detail=f"{valid} of {len(calls)} calls have arguments that fit the schema",
        ),
        Check(
            name=names[2],
            passed=distinct,
            score=None,
            limit=None,
            detail=f"{len(calls)} calls, every id present and its own within the answer: {'yes' if distinct else 'no'}",
        ),
    )


def f1_of(expected: Sequence[bool], found: Sequence[bool]) -> float:
    """Harmonic mean of precision and recall; an answer that is missing counts as no call."""
    pairs = [(want, got) for want, got in zip(expected, [*found, *[False] * len(expected)], strict=False)]
    right = sum(want and got for want, got in pairs)
    wrong = sum(want != got for want, got in pairs)
    return 2 * right / (2 * right + wrong) if right or wrong else 1.0


def _valid_call(call: ToolCall) -> bool:
    schema = TOOL_SCHEMAS.get(call.name)
    return schema is not None and fits(call.arguments, schema)


def fits(text: str, schema: Json) -> bool:
    """Whether ``text`` is JSON that the schema takes."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(jsonschema_rs.is_valid(schema, value))


def structured_output(old: Sequence[Answer] | None, new: Sequence[Answer] | None, limits: Thresholds) -> Check:
    """Answers under a JSON schema are JSON that fits it."""
    name = "JSON by schema"
    if old is None:
        return _not_applicable(name, "the baseline refuses response_format")
    if not any(fits(answer.text, PERSON) for answer in old):
        return _not_applicable(name, "the baseline's own answers do not fit the schema")
    good = sum(fits(answer.text, PERSON) for answer in new or ())
    share = good / len(old)
    detail = f"{good} of {len(old)} answers fit the schema"
    return Check(name=name, passed=share >= limits.schema_share, score=share, limit=limits.schema_share, detail=detail)


def needle_recall(baseline: Answers, candidate: Answers, limits: Thresholds) -> Check:
    """How many numbers hidden in a long text are found, against how many the baseline finds."""
    old, new = (list(_found(answers)) for answers in (baseline, candidate))
    if not any(old):
        return _not_applicable("needle recall", "the baseline finds none of the numbers")
    before, after = fmean(old), fmean(new)
    detail = f"{sum(new)} of {len(new)} numbers found, {sum(old)} by the baseline ({baseline.needle_words} words)"
    limit = before - limits.recall_drop
    return Check(name="needle recall", passed=after >= limit, score=after, limit=limit, detail=detail)


def _found(answers: Answers) -> Iterator[bool]:
    for needle, answer in zip(needles(answers.needle_words), answers.needles, strict=True):
        yield needle.answer in answer.text


def _not_applicable(name: str, why: str) -> Check:
    return Check(name=name, passed=None, score=None, limit=None, detail=f"not applicable: {why}")
