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

STUB = """
import json, os, signal, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

words = sys.argv[1:]
model = words[words.index("--model-path") + 1] if "--model-path" in words else words[0]
port = int(words[words.index("--port") + 1])
kind, _, argument = model.partition("=")
print("starting with", " ".join(words), flush=True)
if argument:
    helper = subprocess.Popen(["sleep", "600"])
    with open(argument, "a") as f: f.write(f"{os.getpid()} {helper.pid} {' '.join(words)}\\n")
if kind == "oom":
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB", flush=True); sys.exit(1)
if kind == "crash":
    print("Segmentation fault in kernel", flush=True); os.abort()
if kind == "busy" or (kind == "busy-once" and open(argument).read().count("--port") == 1):
    print("OSError: [Errno 98] error while attempting to bind on address: address already in use", flush=True)
    sys.exit(1)
if kind == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
asked, ready = 0, time.monotonic() + 0.4


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *words): pass

    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/v1/models": self.answer({"data": [{"id": model}]})
        elif self.path == "/version": self.answer({"version": "0.23.1rc2"})
        elif self.path == "/get_server_info": self.answer({"version": "0.5.9"})
        else: self.answer({"status": "green"})

    def do_POST(self):
        global asked
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if time.monotonic() < ready or kind == "never-ready":
            return self.answer({"error": {"message": "still loading"}}, 503)
        if not body.get("stream"):
            return self.answer({"choices": [{"message": {"content": "x"}}], "usage": {"completion_tokens": 1}})
        asked += 1
        if kind == "dies" and asked > 5:
            print("RuntimeError: NCCL error", flush=True); os._exit(7)
        if kind == "late-oom" and asked > 5:
            print("torch.OutOfMemoryError: CUDA out of memory.", flush=True); os._exit(1)
        if kind == "stalls": time.sleep(600)
        count = body.get("max_tokens") or body["max_completion_tokens"]
        if kind == "wrong": count = max(1, count - 3)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number in range(count):
            time.sleep(0.002)
            end = "length" if number == count - 1 else None
            self.event({"choices": [{"index": 0, "delta": {"content": " t"}, "finish_reason": end}]})
        usage = {"prompt_tokens": 20, "completion_tokens": count, "total_tokens": 20 + count}
        self.event({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 8}}})
        self.piece(b"data: [DONE]\\n\\n")
        self.piece(b"")

    def event(self, data):
        whole = {"id": "x", "object": "chat.completion.chunk", "model": model, **data}
        self.piece(b"data: " + json.dumps(whole).encode() + b"\\n\\n")

    def piece(self, data):
        self.wfile.write(f"{len(data):x}\\r\\n".encode() + data + b"\\r\\n")
        self.wfile.flush()


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A program that behaves like an external engine's server, well or badly by the name of its model."""
    path = tmp_path_factory.mktemp("stub") / "server.py"
    path.write_text(STUB, encoding="utf-8")
    return (sys.executable, "-S", str(path))


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
    patience = Seconds(90.0)  # far more than a busy machine takes to start a child
    return MeasurePlan(warmup=Seconds(0.1), window=Seconds(0.4), timeout=patience)


@pytest.fixture
def workload() -> Workload:
    turns = (Turn(text="a question", output_tokens=8), Turn(text="and another", output_tokens=4))
    sessions = tuple(Session(id=f"s{i}", system="you are brief", turns=turns) for i in range(3))
    return Workload(name="w", seed=0, sessions=sessions, concurrency=2)
