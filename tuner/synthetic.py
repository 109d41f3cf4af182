"""A synthetic serving surface: eight GPUs with a 32-billion-parameter model that exist only as formulas.

Five knobs with the trade-offs of real serving: tensor parallelism (faster steps, more idle silicon), sequences at once
(better batches, longer steps), the token budget of a step (fewer chunks until the first token, longer gaps), the SM
clock (power falls faster than speed, up to a point) and a host tier for the cache (less prefill, slower steps, host
watts). 22% of the points keep the SLOs, 12% do not fit into memory. Searches are compared on it, because its truth is
known; it says nothing about any real machine.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist

from energyopt.core.config import Deployment, EngineConfig, ParallelLayout, PoolConfig
from energyopt.core.errors import OutOfMemoryError
from energyopt.core.study import Knob, Space
from energyopt.core.units import Hertz

from .fake import ToyPoint

SYNTHETIC_SLOS = ("ttft:p90<2400ms", "itl:p99<80ms")
TOP_CLOCK = Hertz(1.98e9)
CONCURRENCY = 64
_PROMPT, _OUTPUT, _LAYERS = 3000.0, 250.0, 64
_PARAMETERS, _MEMORY = 32e9, 72e9
_WEIGHT_BYTES, _KV_BYTES, _ACTIVATION_BYTES = 64e9, 262_144.0, 450_000.0
_BANDWIDTH, _FLOPS = 2.6e12, 4.2e14


@dataclass(frozen=True, slots=True)
class ServingSurface:
    """The laws. ``*_bias`` are factors on what a prediction says, 1 for the truth; exponents are those of the clock."""

    power_exponent: float = 2.6
    speed_exponent: float = 0.85
    energy_bias: float = 1.0
    ttft_bias: float = 1.0
    itl_bias: float = 1.0

    @classmethod
    def biased(cls, seed: int) -> ServingSurface:
        """A simulator of it that errs: by up to 20% in tokens/J, 25% in TTFT, 12% in ITL, and in what clocks do."""
        rng = random.Random(f"{seed}/bias")
        return cls(
            power_exponent=rng.choice((2.0, 2.3, 3.0)),
            speed_exponent=rng.choice((0.6, 0.75, 1.0)),
            energy_bias=rng.uniform(0.8, 1.2),
            ttft_bias=rng.uniform(0.75, 1.25),
            itl_bias=rng.uniform(0.88, 1.12),
        )

    def point(self, deployment: Deployment, concurrency: int) -> ToyPoint:
        """Tokens per joule and the medians of the latencies. Raises OutOfMemoryError where it does not fit."""
        engine = deployment.decode.engine
        tp, budget = engine.layout.tp, engine.max_num_batched_tokens
        batch = min(engine.max_num_seqs, concurrency)
        tiered = bool(engine.kv.tiers)
        self._check(tp, engine.max_num_seqs, budget, tiered)
        clock = (deployment.decode.power.sm_clock or TOP_CLOCK) / TOP_CLOCK
        speed = clock**self.speed_exponent
        fresh = _PROMPT * (0.5 if tiered else 0.72)
        links = 2 * _LAYERS * 9e-6 * math.log2(tp) if tp > 1 else 0.0
        step = (_WEIGHT_BYTES + batch * (_PROMPT + _OUTPUT / 2) * _KV_BYTES) / tp / _BANDWIDTH
        step += batch * 2 * _PARAMETERS / (tp * _FLOPS * speed) + 0.0035 / speed + links + (0.0018 if tiered else 0.0)
        token = 2 * _PARAMETERS / (0.92 ** math.log2(tp) * tp * _FLOPS * speed)
        chunks = max(1.0, fresh / max(1, budget - batch))
        prefill = fresh * token + chunks * (0.004 / speed + links)
        rate = 1 / (prefill + _OUTPUT * step / batch)
        itl = step + 0.45 * min(budget, 3 * fresh) * token
        waiting = max(0.0, concurrency - batch) / rate
        ttft = 0.03 * waiting + 1.5 * prefill * (1 + batch / 48) + chunks * step + (0.05 if tiered else 0.0)
        busy = 0.62 + 0.38 * min(1.0, prefill * rate + batch / 160)
        watts = tp * (75 + 560 * busy * clock**self.power_exponent) + 380 + (45 if tiered else 0)
        tokens = rate * _OUTPUT
        return ToyPoint(tokens / watts * self.energy_bias, tokens, ttft * self.ttft_bias, itl * self.itl_bias)

    def _check(self, tp: int, seqs: int, budget: int, tiered: bool) -> None:
        """Weights, activations of one step and the contexts that must be resident, on each of ``tp`` GPUs."""
        resident = seqs * (_PROMPT + _OUTPUT) * (0.5 if tiered else 0.8)
        needed = (_WEIGHT_BYTES + resident * _KV_BYTES) / tp + budget * _ACTIVATION_BYTES
        if needed > _MEMORY:
            raise OutOfMemoryError(f"{needed / 1e9:.0f} GB are needed on each GPU, the synthetic ones have 72 GB.")


def synthetic_deployment() -> Deployment:
    """What somebody would start with: four GPUs, the engine's defaults, no limits."""
    engine = EngineConfig(
        model="synthetic-32b", layout=ParallelLayout(tp=4), max_num_seqs=32, max_num_batched_tokens=1024
    )
    return Deployment(decode=PoolConfig(engine=engine))


def synthetic_space() -> Space:
    """2,688 points of five knobs."""
    clocks = tuple(float(round(TOP_CLOCK * share / 1e6)) * 1e6 for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9))
    return Space(
        knobs=(
            Knob(path="decode.engine.layout", values=("tp1", "tp2", "tp4", "tp8")),
            Knob(path="decode.engine.max_num_seqs", values=(1, 2, 4, 8, 16, 32, 48, 64)),
            Knob(path="decode.engine.max_num_batched_tokens", values=(256, 512, 1024, 2048, 4096, 8192)),
            Knob(path="decode.power.sm_clock", values=(*clocks, None)),
            Knob(path="decode.engine.kv.tiers", values=("none", "host:64GiB"), ordinal=False),
        )
    )


def true_quantile(center: float, q: float, jitter: float) -> float:
    """The q-quantile of latencies that scatter by ``jitter`` (logarithmic) around ``center``."""
    return center * math.exp(jitter * NormalDist().inv_cdf(q))
