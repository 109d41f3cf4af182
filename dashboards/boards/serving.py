"""Serving: does the SLO hold, what does a token cost in joules, and what does the cache save."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models import dashboard, units

from telemetry import catalog
from telemetry.catalog import ATTRIBUTED, ITL, PROMPT_SOURCE, REQUEST_ENERGY, TTFT, Metric

from ..board import Row, build_board, one_of
from ..catalog import SERVING
from ..energy import measured_output, model_tokens_per_joule
from ..panels import Frame, heat_panel, query, stat_panel, time_panel
from ..promql import ratio
from .accounts import accounts
from .governor import governor
from .scope import ALL, NO_ENGINE, NO_REQUESTS, NO_SPLIT, common_variables, model_variable
from .tiers import tiers

CHOSEN = 'model=~"$model"'
COMPUTED = 'source="local_compute"'
CACHED = 'source!="local_compute"'
JOULES_PER_TOKEN = "suffix:J/tok"
JOULES_PER_REQUEST = "suffix:J/req"
QUANTILES = (0.5, 0.95, 0.99)
RED = {"mode": "fixed", "fixedColor": "red"}


def build() -> dict[str, Any]:
    return build_board(
        SERVING,
        "Latency against its targets, throughput, and joules by token, request and phase of one or more models.",
        [
            Row("Targets and efficiency", 5, _headline()),
            Row("Latency", 9, _latency()),
            Row("Load", 8, _load()),
            Row("Energy", 9, _energy()),
            Row("Who uses it", 8, accounts()),
            Row("Cache", 8, _cache()),
            Row("Tiers of the cache", 8, tiers()),
            Row("Governor", 8, governor()),
        ],
        [*common_variables(), model_variable(), _slo("ttft", "TTFT", TTFT, 0.5), _slo("itl", "ITL", ITL, 0.05)],
    )


def _slo(name: str, label: str, metric: Metric, chosen: float) -> dashboard.VariableModel:
    """The target is one of the histogram's bounds: only for those the share of requests within is exact."""
    values = [str(float(bound)) for bound in metric.buckets]
    text = f"Target for {label} in seconds; the bounds of the histogram, so that the share within it is exact."
    return one_of(f"{name}_slo", f"{label} target (s)", text, values, str(chosen))


def _headline() -> tuple[tuple[int, dashboard.Panel], ...]:
    share = ((None, "red"), (0.9, "yellow"), (0.99, "green"))

    def within(title: str, metric: Metric, variable: str) -> dashboard.Panel:
        frame = Frame(
            title,
            f"Share of observations within the target ${variable} s.",
            units.PercentUnit,
            NO_REQUESTS,
            decimals=2,
            steps=share,
        )
        inside = ALL.rate(metric, CHOSEN, f'le="${variable}"', series="_bucket")
        return stat_panel(frame, query(ratio(f"sum({inside})", f"sum({ALL.rate(metric, CHOSEN, series='_count')})")))

    efficiency = Frame(
        "Tokens per joule",
        "Output tokens over the energy attributed to the chosen models, idle time included.",
        "suffix:tok/J",
        NO_SPLIT,
        decimals=3,
    )
    request = Frame("Mean joules per request", "Mean over the requests that finished.", JOULES_PER_REQUEST, NO_REQUESTS)
    mean = ratio(
        f"sum({ALL.rate(REQUEST_ENERGY, CHOSEN, series='_sum')})",
        f"sum({ALL.rate(REQUEST_ENERGY, CHOSEN, series='_count')})",
    )
    whole = f"sum({ALL.rate(ATTRIBUTED, CHOSEN)})"
    cost = ratio(whole, f"sum({measured_output(ALL, CHOSEN)})")
    per_token = Frame(
        "Joules per output token", "All attributed energy over output tokens.", JOULES_PER_TOKEN, NO_SPLIT, decimals=3
    )
    return (
        (4, within("First token in time", TTFT, "ttft_slo")),
        (4, within("Next token in time", ITL, "itl_slo")),
        (4, stat_panel(efficiency, query(model_tokens_per_joule(ALL, "sum", CHOSEN)))),
        (4, stat_panel(per_token, query(cost))),
        (4, stat_panel(request, query(mean))),
        (
            4,
            stat_panel(Frame("Power", "Watts attributed to the chosen models.", units.Watt, NO_SPLIT), query(whole)),
        ),
    )


def _latency() -> tuple[tuple[int, dashboard.Panel], ...]:
    def percentiles(title: str, text: str, metric: Metric, slo: str = "") -> dashboard.Panel:
        targets = [query(ALL.quantile(q, metric, CHOSEN), f"p{q * 100:g}") for q in QUANTILES]
        dashed = {
            "custom.lineStyle": {"fill": "dash", "dash": [10, 10]},
            "color": RED,
        }
        if slo:
            targets.append(query(f"vector(${slo})", "target"))
        frame = Frame(title, text, units.Seconds, NO_REQUESTS, low=0, overrides=(("target", dashed),))
        return time_panel(frame, targets)

    return (
        (8, percentiles("Time to first token", "Arrival to first token, and its target.", TTFT, "ttft_slo")),
        (8, percentiles("Time between tokens", "Gaps between output tokens, and their target.", ITL, "itl_slo")),
        (8, percentiles("Request duration", "Arrival to end of finished requests.", catalog.E2E)),
    )


def _load() -> tuple[tuple[int, dashboard.Panel], ...]:
    def by(title: str, text: str, unit: str, metric: Metric, label: str) -> dashboard.Panel:
        expression = f"sum by ({label}) ({ALL.rate(metric, CHOSEN)})"
        return time_panel(Frame(title, text, unit, NO_ENGINE, low=0), [query(expression, f"{{{{{label}}}}}")])

    queue = [
        query(f"sum({ALL.gauge(catalog.RUNNING, CHOSEN)})", "running"),
        query(f"sum({ALL.gauge(catalog.WAITING, CHOSEN)})", "waiting"),
    ]
    usage = Frame("KV cache in use", "Blocks in use over all; 1 is full.", units.PercentUnit, NO_ENGINE, low=0, high=1)
    step = ratio(f"sum({ALL.rate(catalog.STEP_SECONDS, CHOSEN)})", f"sum({ALL.rate(catalog.STEPS, CHOSEN)})")
    return (
        (5, by("Tokens", "Prompt and output tokens.", "suffix:tok/s", catalog.TOKENS, "kind")),
        (5, by("Requests", "Finished requests by reason.", "reqps", catalog.REQUESTS, "finish_reason")),
        (5, time_panel(Frame("Queue", "Requests in the batch and waiting for it.", "short", NO_ENGINE, low=0), queue)),
        (5, time_panel(usage, [query(ALL.gauge(catalog.KV_USAGE, CHOSEN), "{{instance}} {{model}}")])),
        (
            4,
            time_panel(
                Frame("Engine step", "Mean duration of a step.", units.Seconds, NO_ENGINE, low=0), [query(step, "step")]
            ),
        ),
    )


def _energy() -> tuple[tuple[int, dashboard.Panel], ...]:
    by_phase = f"sum by (phase) ({ALL.rate(ATTRIBUTED, CHOSEN)})"
    output = f"sum({measured_output(ALL, CHOSEN)})"
    phases = Frame(
        "Joules per output token by phase",
        "What a token costs and where: `prefill` and `decode` are work for requests, `overhead` steps without one, "
        "`idle` time without a step.",
        JOULES_PER_TOKEN,
        NO_SPLIT,
        low=0,
    )
    spread = Frame(
        "Joules of single requests",
        "How many requests took how much energy. Wide or two-humped: some prompts are far dearer than others.",
        units.Joule,
        NO_REQUESTS,
    )
    buckets = f"sum by (le) ({ALL.increase(REQUEST_ENERGY, CHOSEN, series='_bucket')})"
    tokens_per_joule = Frame(
        "Tokens per joule by model", "Output tokens over attributed energy.", "suffix:tok/J", NO_SPLIT, low=0
    )
    return (
        (
            8,
            time_panel(phases, [query(f"{by_phase} / on () group_left () ({output} > 0)", "{{phase}}")], stacked=True),
        ),
        (8, heat_panel(spread, query(buckets, "{{le}}"))),
        (8, time_panel(tokens_per_joule, [query(model_tokens_per_joule(ALL, "sum by (model)", CHOSEN), "{{model}}")])),
    )


def _cache() -> tuple[tuple[int, dashboard.Panel], ...]:
    cached, computed = (f"sum({ALL.rate(PROMPT_SOURCE, CHOSEN, which)})" for which in (CACHED, COMPUTED))
    every = f"sum({ALL.rate(PROMPT_SOURCE, CHOSEN)})"
    tiers = f"sum by (source) ({ALL.rate(PROMPT_SOURCE, CHOSEN, CACHED)})"
    prefill = ALL.rate(ATTRIBUTED, CHOSEN, 'phase="prefill"')
    per_computed = ratio(f"sum({prefill})", computed)
    hit = Frame(
        "Hit rate by tier",
        "Share of prompt tokens whose keys and values came from a cache, by the tier that held them.",
        units.PercentUnit,
        NO_ENGINE,
        low=0,
        high=1,
    )
    cost = Frame(
        "Joules per computed prompt token",
        "Prefill energy over the prompt tokens that no cache held.",
        JOULES_PER_TOKEN,
        NO_SPLIT,
        low=0,
    )
    saved = Frame(
        "Power saved by the cache (estimate)",
        "Cached prompt tokens times the joules that a computed one takes now. An estimate: attention of a longer "
        "prompt costs more than its share, so this is rather too low.",
        units.Watt,
        NO_SPLIT,
        low=0,
    )
    preempted = Frame("Preemptions", "Requests put back to make room.", "cps", NO_ENGINE, low=0)
    return (
        (6, time_panel(hit, [query(f"{tiers} / on () group_left () ({every} > 0)", "{{source}}")], stacked=True)),
        (6, time_panel(cost, [query(per_computed, "prefill")])),
        (6, time_panel(saved, [query(f"{cached} * ({per_computed})", "saved")])),
        (6, time_panel(preempted, [query(f"sum by (model) ({ALL.rate(catalog.PREEMPTIONS, CHOSEN)})", "{{model}}")])),
    )
