"""The options by which verbs that start an engine spread it over ranks; the names are vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

_PANEL = "Parallel layout"

TensorParallel = Annotated[
    int,
    typer.Option(
        "--tensor-parallel-size", "-tp", min=1, rich_help_panel=_PANEL, help="Ranks that split heads and columns."
    ),
]
PipelineParallel = Annotated[
    int,
    typer.Option("--pipeline-parallel-size", "-pp", min=1, rich_help_panel=_PANEL, help="Stages that split layers."),
]
ContextParallel = Annotated[
    int,
    typer.Option(
        "--decode-context-parallel-size",
        "-dcp",
        min=1,
        rich_help_panel=_PANEL,
        help="Of the tensor ranks that hold copies of a key head, how many split its positions instead.",
    ),
]
DataParallel = Annotated[
    int,
    typer.Option(
        "--data-parallel-size",
        "-dp",
        min=1,
        rich_help_panel=_PANEL,
        help="Replicas of attention beside spread experts.",
    ),
]
ExpertParallel = Annotated[
    bool,
    typer.Option(
        "--enable-expert-parallel/--no-enable-expert-parallel",
        rich_help_panel=_PANEL,
        help="Whole experts to each of the tensor x data ranks, instead of a share of every expert.",
    ),
]


def layout_settings(options: Mapping[str, Any]) -> dict[str, int]:
    """The ``layout`` of an ``EngineConfig``, from a Typer context's ``params``."""
    tp, dp = int(options["tensor_parallel_size"]), int(options["data_parallel_size"])
    return {
        "tp": tp,
        "pp": int(options["pipeline_parallel_size"]),
        "dcp": int(options["decode_context_parallel_size"]),
        "dp": dp,
        "ep": tp * dp if options["enable_expert_parallel"] else 1,
    }
