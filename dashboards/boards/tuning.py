"""Tuning: one study, read from SQL: what was tried, what is best, what it saves, and how sure that is."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models import common, dashboard, trend, units, xychart

from ..board import Row, build_board, datasource
from ..catalog import PLUGINS, TUNING, Flavour
from ..panels import BLANK, Frame, panel, stat_panel, table_panel
from ..sql import SqlQuery, sql_source, study_variable

STUDY = "study_id = ${study:sqlstring}"
"""The chosen study, quoted by Grafana."""

NO_STUDY = "No study is stored here: run `energyopt tune`, and let this data source read its database."
NOT_YET = "Not known yet: the study has not come that far."
TOKENS_PER_JOULE = "suffix:tok/J"
TRIAL_UNITS = (
    ("tok/J", {"unit": TOKENS_PER_JOULE, "decimals": 3}),
    ("tok/s", {"unit": "suffix:tok/s", "decimals": 1}),
    ("/^(TTFT|ITL|per token)/", {"unit": units.Seconds}),
    ("J/request", {"unit": units.Joule}),
    ("hit rate", {"unit": units.PercentUnit}),
    ("worst SLO", {"unit": units.PercentUnit}),
)


def build(flavour: Flavour) -> dict[str, Any]:
    return build_board(
        TUNING,
        "Studies of energyopt: the Pareto set, the best so far, every trial, and what was verified.",
        [
            Row("Outcome", 5, _outcome(flavour)),
            Row("Search", 11, _search(flavour)),
            Row("Trials", 11, ((24, _trials(flavour)),)),
            Row("Knobs and failures", 9, _details(flavour)),
        ],
        [
            datasource("sql", "Results", PLUGINS[flavour]),
            study_variable(flavour),
        ],
        since="now-24h",
        refresh="30s",
        annotations=[_annotation(flavour)],
    )


def _ask(flavour: Flavour, columns: str, view: str, rest: str = "") -> SqlQuery:
    return SqlQuery(flavour, f"SELECT {columns} FROM energyopt_v_{view} WHERE {STUDY}{rest}")


def _outcome(flavour: Flavour) -> tuple[tuple[int, dashboard.Panel], ...]:
    def number(
        title: str, text: str, unit: str, query: SqlQuery, missing: str = NOT_YET, **more: Any
    ) -> dashboard.Panel:
        frame = Frame(title, text, unit, missing, **more)
        return stat_panel(frame, query, source=sql_source(flavour))

    signed = ((None, "red"), (0.0, "green"))
    yes_no = (("1", "verified", "green"), ("0", "not verified", "orange"))
    feasible = "CAST(feasible AS double precision) / NULLIF(finished, 0)"
    saving = "Energy per token that the chosen configuration saves over the baseline, as a mean over paired runs."
    return (
        (4, number("Trials finished", "Search trials that ended.", "short", _of(flavour, "finished"), NO_STUDY)),
        (
            4,
            number(
                "Feasible share",
                "Share of finished trials that kept every SLO.",
                units.PercentUnit,
                _of(flavour, f"{feasible} AS share"),
                NO_STUDY,
            ),
        ),
        (
            4,
            number(
                "Best so far",
                "Highest value of what the study maximises among feasible trials.",
                "short",
                _ask(flavour, "MAX(best) AS best", "best"),
                decimals=3,
            ),
        ),
        (4, number("Energy saved", saving, units.PercentUnit, _of(flavour, "saving"), steps=signed, decimals=1)),
        (
            4,
            number(
                "At least saved",
                "Lower end of the confidence interval of the saving. Below 0: the saving may be chance.",
                units.PercentUnit,
                _of(flavour, "saving_low"),
                steps=signed,
                decimals=1,
            ),
        ),
        (
            4,
            number(
                "Verification",
                "Whether the winner kept every SLO on fresh prompts and its saving is not chance.",
                "short",
                _of(flavour, "verified"),
                mappings=yes_no,
                steps=((None, "text"),),
            ),
        ),
    )


def _of(flavour: Flavour, columns: str) -> SqlQuery:
    return _ask(flavour, columns, "studies")


def _search(flavour: Flavour) -> tuple[tuple[int, dashboard.Panel], ...]:
    frame = Frame(
        "Pareto set: value against time per token",
        "Up is better, left is faster. A configuration on the front is feasible and no other beats it in both. "
        "Trials without joules or latency are not drawn.",
        "short",
        NO_STUDY,
        overrides=(BLANK, ("seconds per token (p90)", {"unit": units.Seconds})),
    )
    best = Frame(
        "Best over trials",
        "Value of each finished trial, and the best feasible one up to it.",
        "short",
        NO_STUDY,
        overrides=(
            BLANK,
            ("value", {"custom.drawStyle": "points", "custom.pointSize": 7}),
            ("best", {"custom.lineInterpolation": "stepAfter", "custom.lineWidth": 2}),
        ),
    )
    source = sql_source(flavour)
    ordered = _ask(flavour, "number AS trial, value, best", "best", " ORDER BY number")
    legend = common.VizLegendOptions(
        display_mode=common.LegendDisplayMode.LIST, placement=common.LegendPlacement.BOTTOM, show_legend=True, calcs=[]
    )
    tooltip = common.VizTooltipOptions(mode=common.TooltipDisplayMode.MULTI, sort=common.SortOrder.NONE)
    options = trend.Options(legend=legend, tooltip=tooltip, x_field="trial")
    custom = common.GraphFieldConfig(show_points=common.VisibilityMode.AUTO, line_width=1)
    return (
        (13, panel("xychart", frame, [_points(flavour)], _scatter(), _dots(), source=source)),
        (11, panel("trend", best, [ordered], options, custom, source=source)),
    )


GROUPS = ("misses an SLO", "keeps the SLOs", "Pareto set", "chosen")
"""Columns of the scatter, drawn in this order."""


def _points(flavour: Flavour) -> SqlQuery:
    """A column per group, so that each is a series of its own; a point is NULL in every other."""
    tests = ("feasible = 0", "feasible = 1 AND on_front = 0", "on_front = 1", "chosen = 1")
    columns = ", ".join(f'CASE WHEN {t} THEN value END AS "{name}"' for t, name in zip(tests, GROUPS, strict=True))
    first = 'number AS trial, tpot_p90 AS "seconds per token (p90)"'
    return _ask(flavour, f"{first}, {columns}", "pareto", " ORDER BY tpot_p90")


def _scatter() -> xychart.Options:
    def by_name(name: str) -> xychart.MatcherConfig:
        return xychart.MatcherConfig("byName", name)

    series = [
        xychart.XYSeriesConfig(
            name=xychart.XychartXYSeriesConfigName(fixed=name),
            frame=xychart.XychartXYSeriesConfigFrame(xychart.MatcherConfig("byIndex", 0)),
            x=xychart.XychartXYSeriesConfigX(by_name("seconds per token (p90)")),
            y=xychart.XychartXYSeriesConfigY(by_name(name)),
        )
        for name in GROUPS
    ]
    legend = common.VizLegendOptions(
        display_mode=common.LegendDisplayMode.LIST, placement=common.LegendPlacement.BOTTOM, show_legend=True, calcs=[]
    )
    tooltip = common.VizTooltipOptions(mode=common.TooltipDisplayMode.SINGLE, sort=common.SortOrder.NONE)
    return xychart.Options(mapping=xychart.SeriesMapping.MANUAL, legend=legend, tooltip=tooltip, series=series)


def _dots() -> xychart.FieldConfig:
    return xychart.FieldConfig(
        show=xychart.XYShowMode.POINTS, point_size=xychart.XychartFieldConfigPointSize(fixed=8), fill_opacity=60
    )


def _trials(flavour: Flavour) -> dashboard.Panel:
    columns = (
        'number AS "trial", origin, outcome, value, tokens_per_joule AS "tok/J", output_rate AS "tok/s", '
        'ttft_p90 AS "TTFT p90", itl_p99 AS "ITL p99", tpot_p90 AS "per token p90", '
        'joules_per_request AS "J/request", hit_rate AS "hit rate", slo_violation AS "worst SLO", '
        'energy_source AS "joules by"'
    )
    frame = Frame(
        "Every trial",
        "Best first. `worst SLO` is the largest relative excess over a target; at most 0 keeps all. "
        "`joules by` says how energy was obtained.",
        "short",
        NO_STUDY,
        overrides=TRIAL_UNITS,
    )
    order = " ORDER BY CASE WHEN feasible = 1 THEN 0 ELSE 1 END, COALESCE(value, 0) DESC, number"
    return table_panel(frame, [_ask(flavour, columns, "trials", order)], source=sql_source(flavour))


def _details(flavour: Flavour) -> tuple[tuple[int, dashboard.Panel], ...]:
    source = sql_source(flavour)
    knobs = Frame(
        "What each setting led to",
        "Mean and best value by knob and setting over feasible trials. Other knobs vary too: read it as a hint.",
        "short",
        NO_STUDY,
        overrides=(("knob", {"custom.width": 180}), _AS_WRITTEN, ("/^(trials|mean|best)$/", _SHORT)),
    )
    by_setting = SqlQuery(
        flavour,
        "SELECT k.knob, k.setting, COUNT(*) AS trials, AVG(t.value) AS mean, MAX(t.value) AS best "
        "FROM energyopt_v_knobs AS k JOIN energyopt_v_trials AS t ON t.study_id = k.study_id AND t.number = k.number "
        f"WHERE t.{STUDY} AND t.feasible = 1 AND t.searched = 1 "
        "GROUP BY k.knob, k.setting ORDER BY k.knob, MAX(t.value) DESC",
    )
    failures = Frame(
        "What failed, and why",
        "Trials that missed an SLO, did not fit or did not start.",
        "short",
        NOT_YET,
        overrides=(("worst SLO", {"unit": units.PercentUnit}), ("/^(trial|attempts)$/", _SHORT)),
    )
    why = _ask(
        flavour,
        'number AS "trial", outcome, attempts, slo_violation AS "worst SLO", error',
        "trials",
        " AND outcome IS NOT NULL AND feasible = 0 ORDER BY number",
    )
    narrow = ("/^(finished|feasible|saving)$/", _SHORT)
    studies = Frame("Studies", "The newest studies in this database.", "short", NO_STUDY, overrides=(_PERCENT, narrow))
    newest = SqlQuery(
        flavour,
        "SELECT name, model, state, finished, feasible, saving FROM energyopt_v_studies "
        "ORDER BY sequence DESC LIMIT 20",
    )
    return (
        (8, table_panel(knobs, [by_setting], source=source)),
        (8, table_panel(failures, [why], source=source)),
        (8, table_panel(studies, [newest], source=source)),
    )


_SHORT = {"custom.width": 64}
_AS_WRITTEN = ("setting", {"unit": "string"})
"""Grafana reads a number in a text too, and would round 302.5 to 303."""
_PERCENT = ("saving", {"unit": units.PercentUnit, "decimals": 1})


def _annotation(flavour: Flavour) -> dashboard.AnnotationQuery:
    """Each trial as a region on every time axis of the board."""
    columns = (
        "time, time_end AS timeend, 'trial ' || number || ': ' || COALESCE(outcome, state) AS text, origin AS tags"
    )
    return dashboard.AnnotationQuery(
        name="Trials",
        datasource=sql_source(flavour),
        enable=True,
        icon_color="blue",
        target=_ask(flavour, columns, "trials", " ORDER BY number"),
    )
