"""Launch commands that the tuner prints are commands that ``serve`` takes."""

from __future__ import annotations

import typer

from energyopt.cli.serve import serve
from tuner.export.flags import FLAGS
from tuner.export.tiers import PLACES


def test_serve_has_every_flag_that_a_launch_command_may_use() -> None:
    app = typer.Typer()
    app.command()(serve)
    known = {name for parameter in typer.main.get_command(app).params for name in parameter.opts}
    assert {f"--{flag.name}" for flag in FLAGS if flag.ours} <= known
    assert {f"--{name}" for name in PLACES.values()} <= known
    sizes = {"--kv-host-gib-per-host", "--kv-host-gib-per-rank", "--kv-disk-gib-per-host", "--kv-shared-gib-per-host"}
    assert sizes <= known
