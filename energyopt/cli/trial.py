"""``energyopt-trial``: the process of one trial. It is started by the tuner, not by a person."""

from __future__ import annotations

from energyopt.compose.rig import build_rig
from tuner.worker import serve_trial


def main() -> int:
    """Read one job from standard input, answer on standard output; see ``tuner.worker``.

    Thread settings of the C libraries come from the environment, which the parent has set: torch is loaded above.
    """
    return serve_trial(build_rig)
