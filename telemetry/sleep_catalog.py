"""Metrics of an engine that gives its device memory back while nobody asks it."""

from __future__ import annotations

from .metric import own

ASLEEP = own("asleep", "gauge", "1 while the engine has given its device memory back.", "model")
SLEEPS = own("sleeps_total", "counter", "Times the engine fell asleep.", "model")
SECONDS = own("asleep_seconds_total", "counter", "Time asleep, of the sleeps that ended.", "model")
FREED = own("sleep_freed_bytes", "gauge", "Device memory that the last sleep gave back.", "model")
SAVED = own(
    "sleep_saved_joules",
    "gauge",
    "Energy that idling awake would have taken, less what was taken asleep; below 0 if sleeping cost more.",
    *("model", "source"),
)

SLEEP = (ASLEEP, SLEEPS, SECONDS, FREED, SAVED)
