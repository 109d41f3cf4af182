"""The waiting queue against a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.units import Seconds
from engine.policy import FirstComeFirstServed, PriorityFirst
from engine.request import Request, SamplingParams, Status
from engine.waiting import WaitingQueue


class ShortestFirst:
    """Another policy: the shortest prompt goes first."""

    def rank(self, request: Request) -> tuple[float, ...]:
        return (float(len(request.prompt)),)


def request(name: str, *, arrival: float = 0.0, length: int = 1, status: Status = Status.WAITING) -> Request:
    return Request(name, (0,) * length, SamplingParams(), Seconds(arrival), status=status)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=300))
def test_first_come_first_served_with_departures(script: list[tuple[int, int]]) -> None:
    queue, model = WaitingQueue(FirstComeFirstServed()), list[Request]()
    for number, (arrival, action) in enumerate(script):
        if action < 2 or not model:
            one = request(str(number), arrival=float(arrival))
            queue.push(one)
            model.append(one)
            model.sort(key=lambda r: r.arrival)  # stable: ties in order of entry
        else:
            queue.discard(model.pop(number % len(model)))
        assert len(queue) == len(model)
        if model:
            assert queue.peek() is model[0]
    assert [queue.pop() for _ in range(len(queue))] == model


def test_preempted_requests_come_back_in_their_old_order_before_all_others() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    queue.push(request("early", arrival=0.0))
    for name in ("young", "old"):  # the scheduler preempts the youngest first
        queue.push(request(name, arrival=5.0, status=Status.PREEMPTED))
    assert [queue.pop().id for _ in range(3)] == ["old", "young", "early"]


def test_a_request_may_return_after_it_left() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    one = request("one")
    for _ in range(3):
        queue.push(one)
        queue.discard(one)
    queue.push(one)
    assert queue.pop() is one
    assert len(queue) == 0


def test_departures_do_not_pile_up() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    for number in range(10_000):
        one = request(str(number))
        queue.push(one)
        queue.discard(one)
    assert len(queue._heap) < 100


def test_another_policy_is_one_method() -> None:
    queue = WaitingQueue(ShortestFirst())
    for length in (3, 1, 2):
        queue.push(request(str(length), length=length))
    assert [queue.pop().id for _ in range(3)] == ["1", "2", "3"]


def test_priority_goes_before_arrival_and_whoever_waited_long_goes_before_both() -> None:
    queue = WaitingQueue(PriorityFirst())
    for name, priority, arrival in (("a", 0, 0.0), ("b", 1, 0.0), ("c", -1, 5.0), ("d", 0, 10.5)):
        queue.push(Request(name, (0,), SamplingParams(priority=priority), Seconds(arrival)))
    queue.push(Request("e", (0,), SamplingParams(priority=9), Seconds(9.0), status=Status.PREEMPTED))
    assert [queue.pop().id for _ in range(5)] == ["e", "c", "a", "b", "d"]


@given(st.lists(st.integers(0, 3), max_size=50))
def test_without_priorities_the_order_is_that_of_arrival(arrivals: list[int]) -> None:
    one, other = WaitingQueue(PriorityFirst()), WaitingQueue(FirstComeFirstServed())
    for number, arrival in enumerate(arrivals):
        one.push(request(str(number), arrival=float(arrival)))
        other.push(request(str(number), arrival=float(arrival)))
    assert [one.pop().id for _ in arrivals] == [other.pop().id for _ in arrivals]
