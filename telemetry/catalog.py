"""Every metric this project publishes: name, kind, labels, help. The exporter renders from it, boards query by it.

Base units (joules, watts, seconds), one series per physical sensor, labels of low cardinality that survive a reboot.
A value that is not known has no series. ``vllm:`` names repeat what vLLM's dashboards read, where the engine knows
the value; their meaning is vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass

from .account_catalog import ACCOUNT, STORE
from .control_catalog import CONTROL
from .device_catalog import AGENT, DEVICE
from .draft_catalog import DRAFTS
from .metric import PREFIX, Kind, Metric, own
from .router_catalog import ROUTER
from .sleep_catalog import SLEEP
from .tier_catalog import TIERS

__all__ = ["ACCOUNT", "AGENT", "CATALOG", "CONTROL", "CPU", "DEVICE", "GPU", "PREFIX", "Metric", "SensorMetrics"]

LATENCY = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
GAPS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)


def _vllm(name: str, kind: Kind, text: str, *labels: str, buckets: tuple[float, ...] = ()) -> Metric:
    return Metric(f"vllm:{name}", kind, text, ("model_name", "engine", *labels), buckets)


@dataclass(frozen=True, slots=True)
class SensorMetrics:
    """The families of one kind of sensor, whose first two labels name it."""

    energy: Metric
    power: Metric
    up: Metric
    age: Metric
    tick: Metric
    resets: Metric
    rejected: Metric
    errors: Metric
    overruns: Metric
    crosscheck: Metric

    @classmethod
    def of(cls, kind: str, what: str, *names: str) -> SensorMetrics:
        return cls(
            energy=own(f"{kind}_energy_joules_total", "counter", f"Energy of a {what} since start.", *names, "source"),
            power=own(f"{kind}_power_watts", "gauge", f"Power of a {what} at the newest sample.", *names, "kind"),
            up=own(f"{kind}_up", "gauge", f"1 if the last reading of the {what} succeeded.", *names),
            age=own(f"{kind}_sample_age_seconds", "gauge", f"Age of the newest sample of the {what}.", *names),
            tick=own(f"{kind}_sensor_tick_seconds", "gauge", "Inferred time between updates of the sensor.", *names),
            resets=own(f"{kind}_sensor_resets_total", "counter", "Times the energy counter began anew.", *names),
            rejected=own(
                f"{kind}_samples_rejected_total", "counter", "Readings that were not believed.", *names, "reason"
            ),
            errors=own(f"{kind}_read_errors_total", "counter", "Readings that failed.", *names),
            overruns=own(f"{kind}_sample_overruns_total", "counter", "Readings that came late.", *names),
            crosscheck=own(
                f"{kind}_energy_crosscheck_ratio", "gauge", "Energy by counter over energy by integrated power.", *names
            ),
        )

    @property
    def all(self) -> tuple[Metric, ...]:
        first = (self.energy, self.power, self.up, self.age, self.tick)
        return (*first, self.resets, self.rejected, self.errors, self.overruns, self.crosscheck)


GPU = SensorMetrics.of("gpu", "GPU", "gpu_uuid", "scope")
CPU = SensorMetrics.of("cpu", "CPU domain", "package", "domain")

ATTRIBUTED = ACCOUNT.attributed
REQUEST_ENERGY = ACCOUNT.requests

REQUESTS = own("requests_total", "counter", "Finished requests.", "model", "finish_reason")
TOKENS = own("tokens_total", "counter", "Tokens by kind: prompt, output.", "model", "kind")
PROMPT_SOURCE = own(
    "prompt_tokens_by_source_total", "counter", "Prompt tokens by where their KV came from.", "model", "source"
)
TTFT = own("time_to_first_token_seconds", "histogram", "Arrival to first token.", "model", buckets=LATENCY)
ITL = own("inter_token_latency_seconds", "histogram", "Time between output tokens.", "model", buckets=GAPS)
E2E = own("request_duration_seconds", "histogram", "Arrival to end of a request.", "model", buckets=LATENCY)
RUNNING = own("requests_running", "gauge", "Requests in the running batch.", "model")
WAITING = own("requests_waiting", "gauge", "Requests that wait for a place.", "model")
KV_USAGE = own("kv_cache_usage_ratio", "gauge", "KV blocks in use over all.", "model")
KV_MIN_HIT = own("kv_min_hit_tokens", "gauge", "Tokens of the shortest prefix that the cache can hit.", "model")
KV_RETENTION = own(
    "kv_retention_interval_tokens", "gauge", "Segment of states and windows that are kept; none if all are.", "model"
)
KV_LOADING = own("requests_loading", "gauge", "Requests that wait for blocks from a lower tier.", "model")
KV_LOAD_FAILURES = own("kv_load_failures_total", "counter", "Loads from lower tiers that had to be computed.", "model")
PREEMPTIONS = own("preemptions_total", "counter", "Requests put back to make room.", "model")
STEPS = own("steps_total", "counter", "Engine steps.", "model")
STEP_SECONDS = own("step_seconds_total", "counter", "Time spent in engine steps.", "model")

VLLM_RUNNING = _vllm("num_requests_running", "gauge", "Requests in the running batch.")
VLLM_WAITING = _vllm("num_requests_waiting", "gauge", "Requests that wait for a place.")
VLLM_KV_USAGE = _vllm("kv_cache_usage_perc", "gauge", "KV blocks in use; 1 is full.")
VLLM_PROMPT = _vllm("prompt_tokens_total", "counter", "Prompt tokens of admitted requests.")
VLLM_OUTPUT = _vllm("generation_tokens_total", "counter", "Output tokens.")
VLLM_CACHED = _vllm("prompt_tokens_cached_total", "counter", "Prompt tokens taken from a cache.")
VLLM_SOURCE = _vllm("prompt_tokens_by_source_total", "counter", "Prompt tokens by where their KV came from.", "source")
VLLM_QUERIES = _vllm(
    "prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in this engine's cache."
)
VLLM_HITS = _vllm("prefix_cache_hits_total", "counter", "Prompt tokens that this engine's own cache held.")
VLLM_EXTERNAL_QUERIES = _vllm(
    "external_prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the shared pool."
)
VLLM_EXTERNAL_HITS = _vllm("external_prefix_cache_hits_total", "counter", "Prompt tokens that the shared pool held.")
VLLM_PREEMPTIONS = _vllm("num_preemptions_total", "counter", "Requests put back to make room.")
VLLM_SUCCESS = _vllm("request_success_total", "counter", "Requests that ended well.", "finished_reason")
VLLM_TTFT = _vllm("time_to_first_token_seconds", "histogram", "Arrival to first token.", buckets=LATENCY)
VLLM_ITL = _vllm("inter_token_latency_seconds", "histogram", "Time between output tokens.", buckets=GAPS)
VLLM_TPOT = _vllm(
    "request_time_per_output_token_seconds", "histogram", "Mean time per output token of a request.", buckets=GAPS
)
VLLM_E2E = _vllm("e2e_request_latency_seconds", "histogram", "Arrival to end of a request.", buckets=LATENCY)
VLLM_QUEUE = _vllm("request_queue_time_seconds", "histogram", "Arrival to first step.", buckets=LATENCY)
VLLM_PREFILL = _vllm("request_prefill_time_seconds", "histogram", "First step to first token.", buckets=LATENCY)
VLLM_DECODE = _vllm("request_decode_time_seconds", "histogram", "First token to last token.", buckets=LATENCY)
VLLM_INFERENCE = _vllm("request_inference_time_seconds", "histogram", "First step to last token.", buckets=LATENCY)
VLLM_PROMPT_LENGTH = _vllm("request_prompt_tokens", "histogram", "Prompt tokens of a request.", buckets=LENGTHS)
VLLM_OUTPUT_LENGTH = _vllm("request_generation_tokens", "histogram", "Output tokens of a request.", buckets=LENGTHS)

CATALOG: tuple[Metric, ...] = (
    *GPU.all,
    *CPU.all,
    *DEVICE.all,
    *AGENT.all,
    *ACCOUNT,
    *STORE,
    *TIERS,
    *CONTROL,
    *ROUTER,
    REQUESTS,
    TOKENS,
    PROMPT_SOURCE,
    TTFT,
    ITL,
    E2E,
    RUNNING,
    WAITING,
    KV_USAGE,
    PREEMPTIONS,
    STEPS,
    KV_MIN_HIT,
    KV_RETENTION,
    KV_LOADING,
    KV_LOAD_FAILURES,
    STEP_SECONDS,
    VLLM_RUNNING,
    VLLM_WAITING,
    VLLM_KV_USAGE,
    VLLM_PROMPT,
    VLLM_OUTPUT,
    VLLM_CACHED,
    VLLM_SOURCE,
    VLLM_QUERIES,
    VLLM_HITS,
    VLLM_EXTERNAL_QUERIES,
    VLLM_EXTERNAL_HITS,
    VLLM_PREEMPTIONS,
    VLLM_SUCCESS,
    VLLM_TTFT,
    VLLM_ITL,
    VLLM_TPOT,
    VLLM_E2E,
    VLLM_QUEUE,
    VLLM_PREFILL,
    VLLM_DECODE,
    VLLM_INFERENCE,
    *DRAFTS,
    *SLEEP,
    VLLM_PROMPT_LENGTH,
    VLLM_OUTPUT_LENGTH,
)
