"""Prompt tokens of a window where some replies do not tell how long their prompts were."""

from __future__ import annotations

from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.units import Seconds, Tokens
from tuner.counting import Window
from tuner.replay.ask import Reply
from tuner.replay.prompts import AskedTokens, count_asked

WINDOW = Window(Seconds(10.0), Seconds(20.0))


def reply(first: float | None, end: float, tokens: int | None, cached: int | None = 0) -> Reply:
    ended = tokens is not None
    times = () if first is None else (Seconds(first),)
    record = RequestRecord(
        "r",
        Seconds(0.0),
        Seconds(end),
        tokens or 0,
        cached if ended else None,
        1,
        FinishReason.LENGTH if ended else FinishReason.ABORT,
        times,
    )
    return Reply(record, asked_counted=ended)


def test_a_prompt_belongs_to_its_first_token() -> None:
    replies = [reply(9.0, 11.0, 100), reply(12.0, 13.0, 10, 4), reply(19.0, 21.0, 7, 1)]
    assert count_asked(WINDOW, replies) == AskedTokens(Tokens(17), Tokens(5))


def test_what_the_stop_aborted_moves_every_prompt_to_the_end_of_its_request() -> None:
    replies = [reply(9.0, 11.0, 100), reply(12.0, 13.0, 10), reply(19.0, 21.0, None)]
    assert count_asked(WINDOW, replies) == AskedTokens(Tokens(110), Tokens(0)), "both edges alike, not 10 of 3 prompts"


def test_a_user_who_left_within_the_window_leaves_its_prompts_unknown() -> None:
    assert count_asked(WINDOW, [reply(12.0, 13.0, 10), reply(12.0, 14.0, None)]) == AskedTokens(None, None)


def test_what_had_no_answer_is_in_no_count() -> None:
    assert count_asked(WINDOW, [reply(None, 15.0, None), reply(12.0, 13.0, 10, None)]) == AskedTokens(Tokens(10), None)
