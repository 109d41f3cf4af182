"""``energyopt workload cache-curve``: how much memory the sessions of a trace need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import plotext
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from energyopt.core.errors import ConfigError
from energyopt.core.units import format_si, parse_bytes, parse_interval
from tuner.export.curve_picture import curve_png
from tuner.simulator.cache_curve import BlockCalls, CacheModel, CurvePoint, block_calls, replay, smallest_reaching
from tuner.workload.formats import read_trace

from .output import message_console, print_json, result_console

DEVICE = "device"
ENOUGH = 0.95
"""Share of the ideal hit rate at which a pool is called large enough."""

_USUAL = "1%,2%,5%,10%,20%,50%,inf"


def cache_curve(
    file: Annotated[Path, typer.Argument(metavar="TRACE", help="Mooncake file, or a folder of agentic sessions.")],
    blocks: Annotated[
        str, typer.Option(help="Sizes of the device pool: blocks, shares of all distinct blocks (25%), or inf.")
    ] = _USUAL,
    tiers: Annotated[
        str | None, typer.Option(help="Tiers below, fastest first: host=20000,disk=inf; shares are allowed too.")
    ] = None,
    recurrent: Annotated[
        bool, typer.Option("--recurrent", help="A hybrid model: one recurrent state, as large as a block, per prefix.")
    ] = False,
    retention: Annotated[
        str, typer.Option(help="With --recurrent: tokens between kept states, 0 for boundaries only, or 'dense'.")
    ] = "0",
    kv_bytes_per_token: Annotated[
        str | None, typer.Option(help="Size of one token's KV, such as 128KiB: adds what the blocks take in bytes.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Sessions at once; default: as recorded, else one after another.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="auto, mooncake or weka.")] = "auto",
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens a block id stands for (Mooncake: 512).")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the curve to this PNG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Replay a trace through the engine's scheduler and cache at several sizes: the hit rate by tier at each."""
    console = message_console()
    with console.status(f"reading {file}"):
        calls = block_calls(read_trace(file, form=form, block_tokens=block_size), concurrency)
    sizes = [parse_size(part, calls.distinct) for part in blocks.split(",")]
    lower = parse_tiers(tiers, calls.distinct) if tiers else {}
    model = CacheModel(recurrent, _interval(retention, calls.block_tokens))
    points = _replay_all(console, calls, sizes, lower, model)
    names = (DEVICE, *lower)
    ideal = calls.ideal_hits() / calls.blocks
    per_token = None if kv_bytes_per_token is None else parse_bytes(kv_bytes_per_token)
    if plot is not None:
        plot.write_bytes(curve_png(file.stem, points, names, ideal, calls.block_tokens))
        console.print(f"wrote {plot}", markup=False)
    if as_json:
        print_json(document(calls, points, names, ideal, per_token))
        return
    show(result_console(), file.stem, calls, points, names, ideal, per_token)


def parse_size(text: str, distinct: int) -> int | None:
    """``"4000"``, ``"25%"`` of ``distinct`` blocks (at least 1), or ``"inf"`` -> None. Raises ConfigError."""
    word = text.strip()
    if word == "inf":
        return None
    share = word.removesuffix("%")
    try:
        value = float(share) / 100 * distinct if share != word else float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0 or (share == word and value != int(value)):
        raise ConfigError(
            f"{text!r} is not a size of a pool: expected blocks such as 4000, a share such as 25%, or inf."
        )
    return max(1, round(value))


def parse_tiers(text: str, distinct: int) -> dict[str, int | None]:
    """``"host=20000,disk=inf"``. Raises ConfigError for an unknown tier, one given twice, or no size."""
    tiers: dict[str, int | None] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if name not in ("host", "disk", "shared") or name in tiers:
            raise ConfigError(
                f"{part.strip()!r} is not a tier: expected host, disk and shared, each once, as host=20000."
            )
        tiers[name] = parse_size(size, distinct)
    return tiers


def document(
    calls: BlockCalls, points: Sequence[CurvePoint], tiers: Sequence[str], ideal: float, per_token: int | None
) -> dict[str, object]:
    """The curve as one JSON-ready object; a size without limit is null."""
    enough = smallest_reaching(points, ENOUGH, ideal)
    return {
        "block_tokens": calls.block_tokens,
        "requests": len(calls.prompts),
        "skipped": calls.skipped,
        "blocks": calls.blocks,
        "distinct_blocks": calls.distinct,
        "ideal_hit_rate": ideal,
        "enough": {"share_of_ideal": ENOUGH, "blocks": None if enough is None else enough.capacity},
        "points": [
            {
                "blocks": point.capacity,
                "tokens": None if point.capacity is None else point.capacity * calls.block_tokens,
                "bytes": _bytes(point, calls, per_token),
                "hit_rate": point.hit_rate,
                "hit_rate_by_tier": {tier: point.rate_of(tier) for tier in tiers},
                "loaded_blocks": point.loads,
                "evictions": point.evictions,
                "refused": point.refused,
            }
            for point in points
        ],
    }


def show(
    console: Console,
    name: str,
    calls: BlockCalls,
    points: Sequence[CurvePoint],
    tiers: Sequence[str],
    ideal: float,
    per_token: int | None,
) -> None:
    """A head line, the table, the curve, and the answer in one sentence."""
    skipped = f", {calls.skipped} without block ids left out" if calls.skipped else ""
    console.print(
        f"{name}: {len(calls.prompts):,} requests{skipped}, {calls.distinct:,} distinct blocks of "
        f"{calls.block_tokens} tokens; a cache that forgets nothing hits {ideal * 100:.2f} %"
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    heads = ("pool", *(("bytes",) if per_token else ()), "tokens", "hit rate", "of ideal")
    for head in (*heads, *(tiers if len(tiers) > 1 else ()), "evicted"):
        table.add_column(head, justify="right", no_wrap=True)
    for point in points:
        table.add_row(*_cells(point, calls, tiers, ideal, per_token))
    console.print(table)
    if any(point.refused for point in points):
        console.print("* some prompts are longer than the pool: they count as misses")
    _plot(console, points, ideal)
    console.print(answer(calls, points, ideal, per_token), markup=False, soft_wrap=True)


def answer(calls: BlockCalls, points: Sequence[CurvePoint], ideal: float, per_token: int | None) -> str:
    """What to do with the curve."""
    enough = smallest_reaching(points, ENOUGH, ideal)
    if enough is None or enough.capacity is None:
        return f"no bounded size that was tried reaches {ENOUGH:.0%} of the ideal hit rate: try larger --blocks."
    size = format_si(_bytes(enough, calls, per_token), "B") if per_token else None
    tokens = f"{enough.capacity * calls.block_tokens:,} tokens"
    return (
        f"a pool of {enough.capacity:,} blocks ({tokens}{f', {size}' if size else ''}) reaches {ENOUGH:.0%} of the "
        "ideal hit rate: the smallest of the sizes tried."
    )


def _interval(text: str, block_tokens: int) -> int | None:
    interval = parse_interval(text)
    if interval is not None and interval % block_tokens:
        raise ConfigError(f"--retention {interval} is not allowed: it must be a multiple of {block_tokens} tokens.")
    return None if interval is None else interval // block_tokens


def _replay_all(
    console: Console,
    calls: BlockCalls,
    sizes: Sequence[int | None],
    tiers: dict[str, int | None],
    model: CacheModel,
) -> list[CurvePoint]:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    points: list[CurvePoint] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("replaying", total=len(sizes))
        for number, size in enumerate(sizes):
            progress.update(task, description=f"replaying with {'no limit' if size is None else f'{size:,} blocks'}")
            points.append(
                replay(
                    calls,
                    size,
                    tiers=tiers,
                    model=model,
                    on_call=lambda done, total, at=number: progress.update(task, completed=at + done / total),  # type: ignore[misc]
                )
            )
    return points


def _bytes(point: CurvePoint, calls: BlockCalls, per_token: int | None) -> int | None:
    if point.capacity is None or per_token is None:
        return None
    return point.capacity * calls.block_tokens * per_token


def _cells(
    point: CurvePoint, calls: BlockCalls, tiers: Sequence[str], ideal: float, per_token: int | None
) -> tuple[str, ...]:
    capacity = point.capacity
    size = "no limit" if capacity is None else f"{capacity:,}{'*' if point.refused else ''}"
    tokens = "" if capacity is None else format_si(capacity * calls.block_tokens, "")
    taken = (("" if capacity is None else format_si(_bytes(point, calls, per_token), "B")),) if per_token else ()
    of_ideal = f"{point.hit_rate / ideal * 100:.1f} %" if ideal else "—"
    split = tuple(f"{point.rate_of(tier) * 100:.1f} %" for tier in tiers) if len(tiers) > 1 else ()
    return (size, *taken, tokens, f"{point.hit_rate * 100:.2f} %", of_ideal, *split, f"{point.evictions:,}")


def _plot(console: Console, points: Sequence[CurvePoint], ideal: float) -> None:
    """plotext keeps one figure for the process; it is cleared before use."""
    drawn = sorted((point.capacity, point.hit_rate * 100) for point in points if point.capacity is not None)
    if len(drawn) < 2:
        return
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(min(console.width - 1, 90), 14)
    plotext.title(f"hit rate in % over blocks of the pool (ideal {ideal * 100:.1f} %)")
    plotext.xscale("log")
    plotext.ylim(0, ideal * 105)
    plotext.plot([float(size) for size, _ in drawn], [rate for _, rate in drawn], marker="braille")
    plotext.scatter([float(size) for size, _ in drawn], [rate for _, rate in drawn], marker="o")
    console.print(plotext.uncolorize(plotext.build()).rstrip("\n"), markup=False, highlight=False)
