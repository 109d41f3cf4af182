"""Settings of the C libraries' threads, made before torch is loaded; children inherit them."""

from __future__ import annotations

from collections.abc import MutableMapping

SPINS = "1000"
"""Rounds a thread of GNU OpenMP spins for the next piece of work before it sleeps.

Its default spins for milliseconds, which is lost as soon as another process wants the core. SmolLM2-135M, two threads
on two cores with about ten other busy processes, 8 requests of 40 tokens: 14 s with 1,000 rounds, 17 s without
spinning, over 180 s by default. On the same machine when quiet, three rounds in turn, the default was no faster:
tokens/s at batch 1 / 8 / 16 were 26 / 110 / 155 with 1,000 rounds and 23 / 113 / 164 by default (means; single runs
vary by 15%).
"""

CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def calm_threads(environment: MutableMapping[str, str]) -> None:
    """Bound the spinning, unless the user has chosen otherwise. No effect on a library that is already loaded."""
    if not any(name in environment for name in CHOICES):
        environment["GOMP_SPINCOUNT"] = SPINS
