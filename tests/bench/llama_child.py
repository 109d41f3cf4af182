"""Times llama.cpp on request; run by an interpreter that has llama-cpp-python: ``llama_child.py MODEL THREADS``.

Reads lines ``decode BATCH CONTEXT STEPS`` and ``prefill TOKENS ROUNDS``; answers with the least wall and CPU seconds.
"""

from __future__ import annotations

import ctypes
import sys
import time

import llama_cpp  # type: ignore[import-not-found]

SEQUENCES, ROOM = 16, 20480


class Timer:
    """One model and one context with split KV and flash attention: llama.cpp's fastest setting for many sequences."""

    def __init__(self, path: str, threads: int) -> None:
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_seq_max = ROOM, 2048, 512, SEQUENCES
        settings.n_threads = settings.n_threads_batch = threads
        settings.kv_unified, settings.flash_attn_type = False, 1
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        self._context = llama_cpp.llama_init_from_model(model, settings)
        self._batch = llama_cpp.llama_batch_init(2048, 0, SEQUENCES)

    def prefill(self, tokens: int, rounds: int) -> list[tuple[float, float]]:
        return [self._prompt(0, tokens) for _ in range(rounds)]

    def decode(self, batch: int, context: int, steps: int) -> list[tuple[float, float]]:
        for sequence in range(batch):
            self._prompt(sequence, context, fresh=sequence == 0)
        return [self._run([(1000 + s, context + step, s, True) for s in range(batch)]) for step in range(steps)]

    def _prompt(self, sequence: int, tokens: int, *, fresh: bool = True) -> tuple[float, float]:
        if fresh:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        return self._run([(5 + i % 1000, i, sequence, i == tokens - 1) for i in range(tokens)])

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> tuple[float, float]:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[index], batch.pos[index], batch.logits[index] = token, position, wanted
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
        wall, cpu = time.perf_counter(), time.process_time()
        if llama_cpp.llama_decode(self._context, batch):
            raise SystemExit("llama.cpp refused a batch")
        llama_cpp.llama_synchronize(self._context)
        return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    timer = Timer(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        kind, *numbers = line.split()
        times = getattr(timer, kind)(*map(int, numbers))
        print(*(min(column) for column in zip(*times, strict=True)), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
