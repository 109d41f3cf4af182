"""The router's account of loads: nothing is left over when everything has ended, whatever the order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.units import Seconds
from engine.routing.book import FADING, Book, Traits

EVENTS = st.lists(
    st.tuples(st.sampled_from(["sent", "began", "ended"]), st.integers(0, 4), st.integers(0, 100)), max_size=40
)


@given(events=EVENTS)
def test_loads_are_the_sum_of_what_is_under_way(events: list[tuple[str, int, int]]) -> None:
    book, tickets = Book(), []
    for number, (what, which, tokens) in enumerate(events):
        now = Seconds(float(number))
        if what == "sent":
            tickets.append(book.sent("ab"[which % 2], tokens, tokens // 3, now))
        elif tickets and what == "began":
            book.began(tickets[which % len(tickets)])
        elif tickets:
            book.ended(tickets[which % len(tickets)], now)
        for load in book.loads("ab", now):
            mine = [ticket for ticket in tickets if ticket.worker == load.name and not ticket.ended]
            assert load.requests == book.requests(load.name) == len(mine)
            assert load.prefill_tokens == sum(ticket.fresh for ticket in mine if not ticket.begun)
            assert load.decode_tokens == sum(ticket.prompt_tokens for ticket in mine if ticket.begun)
    for ticket in tickets:
        book.ended(ticket, Seconds(99.0))
    assert all((load.prefill_tokens, load.decode_tokens) == (0, 0) for load in book.loads("ab", Seconds(99.0)))


def test_recent_work_fades() -> None:
    book = Book({"a": Traits(speed=2.0, joules_per_token=0.5)})
    ticket = book.sent("a", 1000, 400, Seconds(10.0))
    book.ended(ticket, Seconds(10.0), output_tokens=100)
    (load,) = book.loads(["a"], Seconds(10.0 + FADING))
    assert load.recent_tokens == pytest.approx(700 / math.e)
    assert (load.speed, load.joules_per_token) == (2.0, 0.5)
