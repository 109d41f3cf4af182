"""Metrics of the router. Part of the catalogue. Labels are bounded: backends are the configured ones."""

from __future__ import annotations

from .metric import Kind, Metric, own

DELAYS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
WAITS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
FIRST_BYTES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 160.0, 640.0)


def _router(name: str, text: str, *labels: str, kind: Kind = "counter", buckets: tuple[float, ...] = ()) -> Metric:
    return own(f"router_{name}", kind, text, *labels, buckets=buckets)


REQUESTS = _router(
    "requests_total",
    "Requests sent to a backend, by what became of it: a status, broken (no whole answer), gone (the client left).",
    *("backend", "outcome"),
)
RETRIES = _router("retries_total", "Requests that were tried elsewhere after this backend.", "backend")
REFUSED = _router("refused_total", "Requests answered with 503 by the router itself: full, draining.", "reason")
EJECTIONS = _router("ejections_total", "Times a backend was taken out after failures in a row.", "backend")
UP = _router("backend_up", "1 while a backend takes new requests.", "backend", kind="gauge")
RUNNING = _router("backend_requests", "Requests under way at a backend.", "backend", kind="gauge")
QUEUED = _router("queued_requests", "Requests that wait for a place at any backend.", kind="gauge")
PROMPT_TOKENS = _router("prompt_tokens_total", "Prompt tokens sent, counted or estimated by length.", "backend")
HIT_TOKENS = _router("hit_tokens_total", "Of those, tokens thought to be in the backend's cache.", "backend")
EVENT_GAPS = _router("kv_event_gaps_total", "Times a backend's cache had to be listed anew.", "backend")
DELAY = _router(
    "delay_seconds",
    "From a whole request to its way to a backend, waiting for a place included.",
    kind="histogram",
    buckets=DELAYS,
)
QUEUE_TIME = _router("queue_seconds", "Waiting for a place.", kind="histogram", buckets=WAITS)
FIRST_BYTE = _router(
    "first_byte_seconds",
    "From a whole request to the first byte of its answer.",
    "backend",
    kind="histogram",
    buckets=FIRST_BYTES,
)

ROUTER: tuple[Metric, ...] = (
    REQUESTS,
    RETRIES,
    REFUSED,
    EJECTIONS,
    UP,
    RUNNING,
    QUEUED,
    PROMPT_TOKENS,
    HIT_TOKENS,
    EVENT_GAPS,
    DELAY,
    QUEUE_TIME,
    FIRST_BYTE,
)
