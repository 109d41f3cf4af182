"""The few expressions that boards, recording rules and alerts share, so that no two screens disagree.

Tokens count in a ratio only where the same process also measures joules: a host without a sensor must not make the
fleet look efficient.
"""

from __future__ import annotations

from telemetry.catalog import ATTRIBUTED, CPU, GPU, TOKENS

from .promql import ENGINE, PromQl, either, ratio

WATT_HOUR = "3600"
KILOWATT_HOUR = "3600000"
"""Joules in one, as PromQL writes it."""


def power(q: PromQl) -> str:
    """Watts of every sensor: the rate of its energy counter."""
    return either(q.rate(GPU.energy), q.rate(CPU.energy))


def energy(q: PromQl, window: str) -> str:
    """Joules of every sensor over ``window``."""
    return either(q.increase(GPU.energy, window=window), q.increase(CPU.energy, window=window))


def output_rate(q: PromQl, *matchers: str) -> str:
    """Output tokens per second of every process and model."""
    return q.rate(TOKENS, 'kind="output"', *matchers)


def tokens_per_joule(q: PromQl) -> str:
    """Output tokens per joule of everything that is measured, idle time included."""
    joules = f"sum by ({ENGINE}) ({power(q)})"
    tokens = f"(sum by ({ENGINE}) ({output_rate(q)}) and on ({ENGINE}) {joules})"
    return ratio(f"sum({tokens})", f"sum({power(q)})")


def measured_output(q: PromQl, *matchers: str) -> str:
    """Output tokens per second of the processes and models that have attributed energy too."""
    per_model = f"{ENGINE}, model"
    return f"(sum by ({per_model}) ({output_rate(q, *matchers)}) and on ({per_model}) {q.rate(ATTRIBUTED, *matchers)})"


def model_tokens_per_joule(q: PromQl, over: str, *matchers: str) -> str:
    """Output tokens per attributed joule; ``over`` is the sum: ``sum`` or ``sum by (model)``."""
    return ratio(f"{over} ({measured_output(q, *matchers)})", f"{over} ({q.rate(ATTRIBUTED, *matchers)})")


def idle_share(q: PromQl) -> str:
    """Share of attributed energy that went to nobody."""
    idle = q.rate(ATTRIBUTED, 'phase="idle"')
    return ratio(f"sum({idle})", f"sum({q.rate(ATTRIBUTED)})")
