"""A trial's child for tests: a real engine front over a fake runner, told by the model's name how to behave."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Seconds
from energyopt.core.workload import Session, Turn, Workload
from tuner.evaluators.embedded import EmbeddedEvaluator

CHILD = """
import os, signal, subprocess, sys, threading, time
from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import ModelNotFoundError, OutOfMemoryError
from energyopt.core.units import Seconds
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from tuner.evaluators.client import EngineClient
from tuner.worker import TrialRig, serve_trial


class Unmetered:
    reasons = ("this child has no meter",)
    def readings(self, start, end): return ()
    def split(self, steps, start, end): return None


def out_of_memory(batch):
    raise OutOfMemoryError("the KV pool does not fit")


def rig(config, meter, step_time=0.001):
    clock, steps, tokenizer = MonotonicClock(), [], FakeTokenizer()
    front = EngineFront(config, FakeRunner(clock=clock, step_time=step_time, verify=False), tokenizer,
                        max_model_len=512, clock=clock, on_step=steps.append)
    render = lambda messages: tokenizer.encode("".join(m["role"] + ":" + m["content"] for m in messages))

    def close():
        front.close()
        print("closed", end="", flush=True)  # half a line, right before the result

    return TrialRig(EngineClient(front, render, clock), Unmetered(), steps, close)


def build(config, meter):
    kind, _, argument = config.model.partition("=")
    print("building", kind, "with meter", meter)  # to the standard output, which must do no harm
    if kind == "abort":
        sys.stderr.write("about to abort\\n"); sys.stderr.flush(); os.abort()
    elif kind == "bad_alloc":
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\\n"); os.abort()
    elif kind == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exit":
        os._exit(int(argument))
    elif kind == "memory":
        raise MemoryError("no room for the weights")
    elif kind == "missing":
        raise ModelNotFoundError("No model 'missing'.")
    elif kind == "bug":
        raise KeyError("a fault of the program")
    elif kind == "chatter":
        for _ in range(3000): sys.stderr.write("x" * 99 + "\\n")
        os._exit(3)
    elif kind == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which the helper inherits
        helper = subprocess.Popen(["sleep", "600"])
        with open(argument, "w") as f: f.write(f"{os.getpid()} {helper.pid}")
        time.sleep(600)
    elif kind == "late_oom":
        return rig(config, meter, step_time=lambda batch: out_of_memory(batch) if len(batch.items) > 1 else 0.001)
    elif kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Thread(target=time.sleep, args=(600,)).start()
    elif kind == "score":
        print("score", open("/proc/self/oom_score_adj").read())
    return rig(config, meter)


sys.exit(serve_trial(build))
"""


@pytest.fixture
def command() -> list[str]:
    return [sys.executable, "-c", CHILD]


@pytest.fixture
def evaluator(command: list[str], tmp_path: Path) -> EmbeddedEvaluator:
    return EmbeddedEvaluator(command, log_dir=tmp_path / "logs", meter="none", grace=Seconds(0.2))


@pytest.fixture
def deployment() -> Callable[[str], Deployment]:
    """The deployment whose model name tells the child what to do."""
    return lambda model: Deployment(decode=PoolConfig(engine=EngineConfig(model=model, max_num_seqs=4)))


@pytest.fixture
def plan() -> MeasurePlan:
    return MeasurePlan(warmup=Seconds(0.1), window=Seconds(0.4), timeout=Seconds(20.0))


@pytest.fixture
def workload() -> Workload:
    turns = (Turn(text="a question", output_tokens=8), Turn(text="and another", output_tokens=4))
    sessions = tuple(Session(id=f"s{i}", system="you are brief", turns=turns) for i in range(3))
    return Workload(name="w", seed=0, sessions=sessions, concurrency=2)
