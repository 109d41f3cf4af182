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
SAVED_ERROR = own(
    "sleep_saved_error_joules", "gauge", "Half-width of the interval of what was saved.", *("model", "source")
)
MEASURED = own(
    "sleep_measured_seconds_total",
    "counter",
    "Time asleep that the saved joules are about; the rest is unknown.",
    "model",
)
REFUSED = own(
    "sleep_wakes_refused_total", "counter", "Times there was no memory to wake, so that work was refused.", "model"
)

SLEEP = (ASLEEP, SLEEPS, SECONDS, FREED, SAVED, SAVED_ERROR, MEASURED, REFUSED)
