"""What goes wrong between the router and an engine.

::

    EngineError (core)
    └── BackendError           502   no connection, a broken answer, silence
        └── StaleConnection          a kept connection that the backend had closed: try a new one
    OverloadedError (core)     503   no healthy backend, no place, or the router drains
"""

from __future__ import annotations

from energyopt.core.errors import EngineError


class BackendError(EngineError):
    """A backend did not answer, or broke off."""

    http_status = 502


class StaleConnection(BackendError):
    """A kept connection ended before the first byte of the answer."""
