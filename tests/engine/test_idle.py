"""An engine that nobody asks gives its memory back, wakes for the next request, and says what that saved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError, OutOfMemoryError, OverloadedError
from energyopt.core.results import EnergyTotal, Source
from energyopt.core.units import Bytes, Joules, Seconds
from engine.asleep import Parked, tensors_of
from engine.batch import Batch, StepResult
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from engine.idle import IdleSleep, idle_sleep_for
from engine.request import SamplingParams
from engine.sleep_account import PIECE

AWAKE, ASLEEP = 60.0, 12.0
"""Watts."""


def between(clock: FakeClock, asleep_from: list[float], lag: float = 0.0) -> Callable[[float, float], Any]:
    """Energy of a device that draws less from the given time on, told by a sensor that is ``lag`` seconds late.

    It remembers 900 s, as the real ones do.
    """

    def energy(start: float, end: float) -> EnergyTotal | None:
        if end > clock.now() - lag or start < clock.now() - 900:
            return None
        since = asleep_from[0] if asleep_from else end
        joules = AWAKE * max(0.0, min(end, since) - start) + ASLEEP * max(0.0, end - max(start, since))
        return EnergyTotal(joules=Joules(joules), error=Joules(0.1 * joules), sources=(Source.COUNTER,))

    return energy


def state(idle: IdleSleep, runner: FakeRunner) -> tuple[float | None, bool]:
    return idle.patience, runner.asleep


@pytest.mark.parametrize("lag", [0.0, 0.5])
def test_it_sleeps_after_its_time_and_tells_the_joules(lag: float) -> None:
    clock, forgotten = FakeClock(), list[bool]()
    runner, since = FakeRunner(clock=clock), list[float]()
    idle = IdleSleep(runner, Seconds(10), clock, lambda: forgotten.append(runner.asleep), between(clock, since, lag))
    assert idle.patience == Seconds(10)
    clock.advance(4)
    idle.turn(True)
    clock.advance(9)
    idle.turn(False)
    assert state(idle, runner) == (1, False)
    clock.advance(1)
    since.append(clock.now())
    idle.turn(False)
    assert state(idle, runner) == (PIECE, True)
    assert forgotten == [False], "before, not after"
    assert (idle.counts.asleep, idle.counts.sleeps, idle.counts.saved, idle.counts.error) == (True, 1, None, None)
    clock.advance(100)
    idle.turn(True)
    assert not runner.asleep
    clock.advance(1)
    idle.turn(True)
    counts = idle.counts
    assert (counts.asleep, counts.sleeps, counts.seconds, counts.freed) == (False, 1, 100, 256 * 4096)
    assert counts.measured == 100
    assert counts.saved == pytest.approx(100 * (AWAKE - ASLEEP))
    assert counts.error == pytest.approx(0.1 * 100 * (AWAKE + ASLEEP))


def test_a_sleep_that_is_longer_than_sensors_remember_is_accounted_for_whole() -> None:
    clock, since = FakeClock(), list[float]()
    idle = IdleSleep(FakeRunner(clock=clock), Seconds(3600), clock, lambda: None, between(clock, since, 0.5))
    clock.advance(3600)
    since.append(clock.now())
    idle.turn(False)
    for _ in range(120):
        assert idle.patience == PIECE
        clock.advance(PIECE)
        idle.turn(False)
    assert idle.counts.measured >= 7200 - 2 * PIECE, "while it sleeps, too"
    idle.turn(True)
    clock.advance(1)
    idle.turn(True)
    assert idle.counts.measured == 7200
    assert idle.counts.saved == pytest.approx(7200 * (AWAKE - ASLEEP))


def test_what_the_sensors_forgot_is_in_no_sum_and_said_to_be_missing() -> None:
    """Nobody looked for longer than they remember: the joules are of fewer seconds than it slept."""
    clock, since = FakeClock(), list[float]()
    idle = IdleSleep(FakeRunner(clock=clock), Seconds(10), clock, lambda: None, between(clock, since))
    for length in (1000, 100):
        clock.advance(10)
        since[:] = [clock.now()]
        idle.turn(False)
        clock.advance(length)
        idle.turn(True)
    clock.advance(250)
    idle.turn(True)
    assert (idle.counts.seconds, idle.counts.measured) == (1100, 100)
    assert idle.counts.saved == pytest.approx(100 * (AWAKE - ASLEEP))


def test_parking_and_waking_are_part_of_what_sleeping_costs() -> None:
    clock, since = FakeClock(), list[float]()

    class Slow(FakeRunner):
        def sleep(self) -> Bytes:
            clock.advance(3)
            since.append(clock.now())
            return super().sleep()

        def wake(self) -> None:
            clock.advance(2)
            super().wake()

    idle = IdleSleep(Slow(clock=clock), Seconds(10), clock, lambda: None, between(clock, since))
    clock.advance(10)
    idle.turn(False)
    clock.advance(95)
    idle.turn(True)
    idle.turn(True)
    clock.advance(1)
    idle.turn(True)
    spent = 3 * AWAKE + 97 * ASLEEP
    assert idle.counts.seconds == 100
    assert idle.counts.saved == pytest.approx(100 * AWAKE - spent)


def test_the_last_step_is_no_idle_time() -> None:
    clock, asked = FakeClock(), list[tuple[float, float]]()

    def energy(start: float, end: float) -> EnergyTotal:
        asked.append((start, end))
        return EnergyTotal(joules=Joules(0.0), error=Joules(0.0), sources=(Source.COUNTER,))

    idle = IdleSleep(FakeRunner(clock=clock), Seconds(10), clock, lambda: None, energy)
    idle.turn(True)
    begun = clock.now()
    clock.advance(7)  # the step
    for _ in range(2):
        idle.rest()
        assert idle.patience == Seconds(10)
        idle.turn(False)
    clock.advance(10)
    idle.turn(False)
    clock.advance(5)
    idle.turn(True)
    assert asked[0] == (begun + 7, begun + 17)


async def test_an_engine_rests_when_its_last_step_has_ended() -> None:
    clock, asked, ended = MonotonicClock(), list[float](), list[float]()

    def energy(start: float, end: float) -> EnergyTotal:
        asked.append(start)
        return EnergyTotal(joules=Joules(0.0), error=Joules(0.0), sources=(Source.COUNTER,))

    class Timed(FakeRunner):
        def run(self, batch: Batch) -> StepResult:
            result = super().run(batch)
            ended.append(clock.now())
            return result

    config = EngineConfig(model="fake", idle_sleep=Seconds(0.02))
    runner = Timed(clock=clock, step_time=Seconds(0.01))
    front = EngineFront(config, runner, FakeTokenizer(), max_model_len=200, clock=clock, energy=energy)
    async for _ in front.generate([5], SamplingParams(max_tokens=3), request_id="a"):
        pass
    last = ended[-1]
    await fallen_asleep(front)
    async for _ in front.generate([5], SamplingParams(max_tokens=3), request_id="b"):
        pass
    front.close()
    assert asked[-2] >= last, "the idle time before the last sleep, which is asked for first"


class Crowded(FakeRunner):
    """Has no memory to wake, as often as it is told."""

    refusals = 1

    def wake(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OutOfMemoryError("Waking the engine did not fit into memory.")
        super().wake()


async def fallen_asleep(front: EngineFront) -> None:
    for _ in range(2000):
        sleep = front.stats().sleep
        if sleep is not None and sleep.asleep:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not fall asleep")


async def test_an_engine_that_cannot_wake_refuses_and_tries_again() -> None:
    runner = Crowded()
    config = EngineConfig(model="fake", idle_sleep=Seconds(0.02))
    front = EngineFront(config, runner, FakeTokenizer(), max_model_len=200, clock=MonotonicClock())

    async def ask() -> str:
        return "".join([o.text async for o in front.generate([5], SamplingParams(max_tokens=9), request_id="r")])

    await fallen_asleep(front)
    with pytest.raises(OverloadedError, match="sleeps and cannot wake now: Waking the engine did not fit") as refusal:
        await ask()
    assert refusal.value.retry_after > 0
    assert len(await ask()) == 9
    sleep = front.stats().sleep
    assert front.alive
    assert sleep is not None
    assert sleep.refused == 1
    front.close()


async def test_closing_does_not_wake() -> None:
    runner = Crowded()
    config = EngineConfig(model="fake", idle_sleep=Seconds(0.02))
    front = EngineFront(config, runner, FakeTokenizer(), max_model_len=200, clock=MonotonicClock())
    await fallen_asleep(front)
    front.close()
    assert (runner.asleep, runner.closed, runner.refusals) == (True, True, 1)


def test_a_failed_restore_gives_back_what_it_took() -> None:
    """To others, too: the device hears of it when nothing is held any more, and not before."""
    first, second, held = torch.ones(4), torch.ones(4), list[tuple[torch.device, int]]()

    def heard(device: torch.device) -> None:
        held.append((device, first.untyped_storage().nbytes() + second.untyped_storage().nbytes()))

    parked = Parked(heard)
    parked.park(iter((first, second)), torch.device("cpu"), keep=True)
    storage, size, copy = parked._storages[1]
    parked._storages[1] = (storage, 1 << 60, copy)
    with pytest.raises(RuntimeError):
        parked.restore()
    assert held == [(torch.device("cpu"), 0)]
    parked._storages[1] = (storage, size, copy)
    parked.restore()
    assert len(held) == 1
    assert first.tolist() == second.tolist() == [1.0] * 4


def test_without_a_meter_nothing_is_said_to_be_saved() -> None:
    clock = FakeClock()
    for energy in (None, lambda start, end: None):
        idle = IdleSleep(FakeRunner(clock=clock), Seconds(1), clock, lambda: None, energy)
        clock.advance(2)
        idle.turn(False)
        clock.advance(5)
        idle.turn(True)
        assert (idle.counts.seconds, idle.counts.saved) == (5, None)


def test_a_runner_that_cannot_sleep_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"idle_sleep = 5 .* no device memory"):
        idle_sleep_for(Seconds(5), object(), FakeClock(), lambda: None, None)
    assert idle_sleep_for(None, object(), FakeClock(), lambda: None, None) is None


async def test_a_request_wakes_the_engine_and_gets_the_same_text() -> None:
    runner = FakeRunner()
    config = EngineConfig(model="fake", idle_sleep=Seconds(0.05))
    front = EngineFront(config, runner, FakeTokenizer(), max_model_len=200, clock=MonotonicClock())

    async def ask() -> tuple[str, int]:
        text, cached = "", 0
        async for output in front.generate([5] * 40, SamplingParams(max_tokens=9), request_id="r"):
            text += output.text
            cached = (output.record.cached_tokens or 0) if output.record else 0
        return text, cached

    first, again = await ask(), await ask()
    await fallen_asleep(front)
    later = await ask()
    assert first[0] == again[0] == later[0]
    assert (first[1], again[1], later[1]) == (0, 32, 0), "what the device held is lost"
    await fallen_asleep(front)
    start = time.monotonic()
    front.close()
    assert time.monotonic() - start < 5
    assert front.stats().sleep is not None


class Layer:
    __module__ = "engine.made_up"
    __slots__ = ("bias", "weight")

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, self.bias = weight, weight[0]


class Model:
    __module__ = "engine.made_up"

    def __init__(self) -> None:
        self.layers = [Layer(torch.arange(12.0).view(3, 4)), Layer(torch.ones(2))]
        self.by_name = {"tied": self.layers[0].weight, "loop": self}
        self.other = "text"


def test_parked_tensors_come_back_as_they_were_and_views_with_them() -> None:
    model, pool, parked = Model(), torch.full((4, 4), 7.0), Parked()
    view, cpu = pool[1], torch.device("cpu")
    found = list(tensors_of(model))
    assert len({id(tensor) for tensor in found}) == 4
    freed = parked.park(iter(found), cpu, keep=True) + parked.park(iter((pool, view)), cpu, keep=False)
    assert freed == Bytes((12 + 2 + 16) * 4)
    assert model.layers[0].weight.untyped_storage().nbytes() == 0
    parked.restore()
    assert model.layers[0].weight.tolist() == torch.arange(12.0).view(3, 4).tolist()
    assert model.layers[0].bias.tolist() == [0, 1, 2, 3]
    assert model.layers[1].weight.tolist() == [1, 1]
    pool[1, 2] = 5
    assert view.tolist() == [0, 0, 5, 0]
    parked.restore()
    assert view.tolist() == [0, 0, 5, 0], "once"
