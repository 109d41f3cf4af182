"""Scores the constants on published tables: what ``energyopt accuracy`` prints and ``docs/accuracy.md`` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from energyopt.core.errors import ConfigError

from .capsweep import CapPrediction, predict_sweep, read_sweep
from .constants import Constants, load_constants
from .fit import fit
from .mlenergy import FILTER, Case, Table, kinds, predict, read_table
from .score import Scored, by_series, score, series_document, summary

Document = dict[str, Any]
Unseen = Literal["nothing", "family", "batch"]
"""What the constants of a prediction have not seen: nothing hidden, the model's family, or every other batch size."""


def mlenergy_accuracy(
    path: Path, *, calibrate: Path | None = None, anchors: int = 0, unseen: Unseen = "nothing"
) -> Document:
    """Errors on a table of the ML.ENERGY v3 format, per class and per series.

    The constants are the released ones, or fitted on ``calibrate``. ``unseen`` "family" fits them for each model family
    anew, on all other families of the calibration table (``path`` itself without one); "batch" fits them on the first,
    third, ... row of each series of ``path`` and scores the rows between. Raises ConfigError, NotFoundError.
    """
    if anchors not in (0, 2):
        raise ConfigError(f"anchors = {anchors} is not allowed: it is 0 or 2.")
    table = read_table(path)
    if not table.cases:
        raise ConfigError(f"No row of {path} passes the filter: {FILTER}.")
    training = read_table(calibrate) if calibrate is not None else table
    scored: list[Scored] = []
    how = "released constants"
    if unseen == "family":
        how = "each model family predicted by constants fitted on the others"
        scored = list(_leave_family_out(table, training, anchors))
    elif unseen == "batch":
        how = "every other batch of a series predicted by constants fitted on the rest"
        scored = list(_leave_batches_out(table))
    else:
        sets = _released(table.cases)
        if calibrate is not None:
            how = f"constants fitted on {calibrate.name}"
            sets |= _fitted(training.cases)
        scored = score(table.cases, lambda case: predict(case, sets[case.kind]), anchors=anchors)
    return _document(path, table, scored, how, anchors)


def _released(cases: Sequence[Case]) -> dict[str, Constants]:
    return {case.kind: load_constants(case.gpu, moe=case.spec.moe) for case in cases}


def _fitted(cases: Sequence[Case]) -> dict[str, Constants]:
    """Constants of every class that the training table shows."""
    sets = {}
    for kind in kinds(cases):
        own = [case for case in cases if case.kind == kind]
        start = load_constants(own[0].gpu, moe=own[0].spec.moe)
        sets[kind] = fit(own, start, provenance=f"fitted on {len(own)} rows")
    return sets


def _leave_family_out(table: Table, training: Table, anchors: int) -> Iterator[Scored]:
    for kind in kinds(table.cases):
        own = [case for case in table.cases if case.kind == kind]
        for family in sorted({case.family for case in own}):
            others = [case for case in training.cases if case.kind == kind and case.family != family]
            if not others:
                continue
            start = Constants(gpu=own[0].gpu.name, origin="prior", provenance="defaults")
            constants = fit(others, start, provenance=f"fitted without {family}")
            held_out = [case for case in own if case.family == family]
            yield from score(held_out, partial(predict, constants=constants), anchors=anchors)


def _leave_batches_out(table: Table) -> Iterator[Scored]:
    for kind in kinds(table.cases):
        series = by_series(case for case in table.cases if case.kind == kind).values()
        known = [case for cases in series for case in cases[::2]]
        start = Constants(gpu=known[0].gpu.name, origin="prior", provenance="defaults")
        constants = fit(known, start, provenance="fitted on every other batch")
        yield from score([case for cases in series for case in cases[1::2]], partial(predict, constants=constants))


def _document(path: Path, table: Table, scored: Sequence[Scored], how: str, anchors: int) -> Document:
    classes: dict[str, Document] = {}
    series: Document = {}
    of_case = {id(row.case): row for row in scored}
    for kind in kinds(row.case for row in scored):
        classes[kind] = dict(summary([row for row in scored if row.case.kind == kind]))
        families = sorted({row.case.family for row in scored if row.case.kind == kind})
        classes[kind]["families"] = {
            family: summary([r for r in scored if r.case.kind == kind and r.case.family == family])
            for family in families
        }
    for name, cases in by_series(table.cases).items():
        rows = [of_case[id(case)] for case in cases if id(case) in of_case]
        if rows:
            series[name] = series_document(rows)
    return {
        "table": path.name,
        "filter": FILTER,
        "rows_used": len(table.cases),
        "rows_scored": len(scored),
        "rows_removed": dict(table.removed),
        "constants": how,
        "anchors": anchors,
        "source": "simulated",
        "signs": sign_tests(scored),
        "classes": classes,
        "series": series,
    }


def sign_tests(scored: Sequence[Scored]) -> Document:
    """Whether the model moves the right way: more devices at one batch cost more joules and less time per token."""
    rows = {(r.case.gpu.name, r.case.task, r.case.model, r.case.max_num_seqs, r.case.devices): r for r in scored}
    joules: list[bool] = []
    rates: list[bool] = []
    ratio: list[float] = []
    for (gpu, task, model, batch, devices), row in rows.items():
        wider = rows.get((gpu, task, model, batch, 2 * devices))
        if wider is None:
            continue
        ratio.append(wider.predicted.joules / row.predicted.joules)
        joules.append((wider.predicted.joules > row.predicted.joules) == (wider.case.joules > row.case.joules))
        rates.append((wider.predicted.rate > row.predicted.rate) == (wider.case.rate > row.case.rate))
    if not ratio:
        return {"pairs": 0}
    return {
        "pairs": len(ratio),
        "joules_sign_right": sum(joules),
        "rate_sign_right": sum(rates),
        "mean_joules_ratio_predicted": fmean(ratio),
    }


def cap_sweep_accuracy(path: Path, *, constants: str | None = None) -> Document:
    """Errors on a power-cap sweep, each series from its highest cap; the anchor rows are shown and not scored.

    ``in_sample`` names the GPUs whose constants say that they were fitted on this very file.
    """
    rows = read_sweep(path)
    if not rows:
        raise ConfigError(f"The file {path} has no rows.")
    found: list[CapPrediction] = []
    origins: dict[str, str] = {}
    for name in sorted({row.gpu.name for row in rows}):
        own = [row for row in rows if row.gpu.name == name]
        used = load_constants(own[0].gpu, moe=False, path=constants)
        origins[name] = used.provenance
        found += predict_sweep(own, used)
    names = sorted({one.row.series for one in found})
    return {
        "table": path.name,
        "filter": "all rows; the row with the highest cap of a series sets speed and watts and is not scored",
        "source": "simulated",
        "constants": origins,
        "in_sample": sorted(name for name, origin in origins.items() if path.name in origin),
        "summary": _sweep_summary(found),
        "series": {name: _sweep_series([one for one in found if one.row.series == name]) for name in names},
    }


def _sweep_summary(found: Sequence[CapPrediction]) -> Mapping[str, float | int]:
    scored = [one for one in found if not one.anchor]
    rate = [abs(one.rate / one.row.rate - 1) for one in scored]
    watts = [abs(one.watts / one.row.watts - 1) for one in scored]
    if not scored:
        return {"rows": 0}
    return {
        "rows": len(scored),
        "tok_s_mape": fmean(rate),
        "tok_s_worst": max(rate),
        "watts_mape": fmean(watts),
        "watts_worst": max(watts),
    }


def _sweep_series(found: Sequence[CapPrediction]) -> Document:
    """One series with its best cap (most tokens per joule), measured and predicted, and how many steps lie between."""
    caps = sorted(one.row.cap for one in found)
    best = max(found, key=lambda one: one.row.rate / one.row.watts).row.cap
    predicted = max(found, key=lambda one: one.rate / one.watts).row.cap
    rows = [
        {
            "cap": one.row.cap,
            "anchor": one.anchor,
            "tok_s": one.row.rate,
            "tok_s_predicted": one.rate,
            "watts": one.row.watts,
            "watts_predicted": one.watts,
        }
        for one in found
    ]
    return {
        **_sweep_summary(found),
        "best_cap": best,
        "best_cap_predicted": predicted,
        "best_cap_steps_off": abs(caps.index(best) - caps.index(predicted)),
        "rows_detail": rows,
    }
