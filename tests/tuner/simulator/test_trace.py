"""A published trace through several engines: everything finishes, and prefixes are found again."""

from __future__ import annotations

import math
from pathlib import Path

from energyopt.core.config import EngineConfig, KvConfig, ParallelLayout
from tuner.simulator.constants import load_constants
from tuner.simulator.hardware import load_gpu
from tuner.simulator.machine import Machine
from tuner.simulator.models import load_model_spec
from tuner.simulator.replica import Replica
from tuner.simulator.traffic import mooncake_requests

REQUESTS, ENGINES = 300, 4


def test_the_conversation_trace_runs_to_its_end_and_hits_its_prefixes(traces: Path) -> None:
    gpu, spec = load_gpu("h200"), load_model_spec("llama-3.1-8b")
    machine = Machine(spec, gpu, ParallelLayout(), load_constants(gpu, moe=False))
    config = EngineConfig(model="x", max_num_seqs=128, max_num_batched_tokens=8192, kv=KvConfig(block_tokens=512))
    replicas = [Replica(machine, config) for _ in range(ENGINES)]
    rows = list(mooncake_requests(traces / "mooncake" / "conversation_trace.jsonl", limit=REQUESTS))
    for number, row in enumerate(rows):
        replicas[number % ENGINES].submit(row)
    for replica in replicas:
        replica.run(math.inf)
        replica.scheduler.check_integrity()
    records = {record.request_id: record for replica in replicas for record in replica.records}
    assert len(records) == REQUESTS
    for row in rows:
        record = records[row.id]
        assert record.output_tokens == row.output_tokens
        assert record.ttft is not None
        assert record.ttft > 0
    assert sum(record.cached_tokens or 0 for record in records.values()) > 0
