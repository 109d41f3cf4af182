"""Panels as the SDK's typed models: one function a kind, with the choices that every panel of ours shares.

Needs ``grafana-foundation-sdk``. ``Frame`` is what all kinds have; its ``missing`` text is what Grafana shows where
a query finds nothing, so that a partial installation explains itself instead of saying "No data".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.models import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)

METRICS = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
SCHEMA = "11.6.0"
"""The oldest Grafana whose panel options these are; without it Grafana migrates them from an older form."""

Override = tuple[str, Mapping[str, object]]
"""A field's name (or ``/pattern/``) and the properties that it has other than the panel's."""
NARROW, WIDE = 6, 10
"""Columns of the screen's 24: up to the one a legend has no room for three figures, from the other it stands beside the
lines, where it has that room only above twice the first."""

BLANK: Override = ("/.*/", {"noValue": "—"})
"""An empty cell; without it each one would say what ``Frame.missing`` says of a whole panel."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What every panel has. ``steps`` are thresholds in the panel's unit: (from, colour), the first from below all."""

    title: str
    help: str
    unit: str
    missing: str
    decimals: int | None = None
    low: float | None = None
    high: float | None = None
    steps: tuple[tuple[float | None, str], ...] = ()
    mappings: tuple[tuple[str, str, str], ...] = ()
    overrides: tuple[Override, ...] = ()


def query(expr: str, legend: str = "__auto", *, instant: bool = False, table: bool = False) -> prometheus.Dataquery:
    """A Prometheus query: over the range, or only at its end."""
    kind = prometheus.PromQueryFormat.TABLE if table else prometheus.PromQueryFormat.TIME_SERIES
    return prometheus.Dataquery(
        datasource=METRICS,
        expr=expr,
        legend_format=legend,
        format_val=kind,
        instant=instant,
        range_val=not instant,
        editor_mode=prometheus.QueryEditorMode.CODE,
    )


def panel(
    kind: str,
    frame: Frame,
    targets: Sequence[variants.Dataquery],
    options: object,
    custom: object = None,
    *,
    source: common.DataSourceRef = METRICS,
    color: dashboard.FieldColorModeId = dashboard.FieldColorModeId.PALETTE_CLASSIC,
    transformations: Sequence[dashboard.DataTransformerConfig] = (),
    interval: str | None = None,
    time_from: str | None = None,
) -> dashboard.Panel:
    """Any panel; the functions below are its kinds."""
    for position, target in enumerate(targets):
        target.ref_id = chr(ord("A") + position)  # type: ignore[attr-defined]  # the SDK's base class declares nothing
    return dashboard.Panel(
        type_val=kind,
        title=frame.title,
        description=frame.help,
        plugin_version=SCHEMA,
        datasource=source,
        targets=list(targets),
        options=options,
        interval=interval,
        time_from=time_from,
        transformations=list(transformations) or None,
        field_config=dashboard.FieldConfigSource(defaults=_defaults(frame, custom, color), overrides=_overrides(frame)),
    )


def stat_panel(frame: Frame, target: variants.Dataquery, *, source: common.DataSourceRef = METRICS) -> dashboard.Panel:
    """One big number: the last value of each series."""
    options = stat.Options(
        graph_mode=common.BigValueGraphMode.NONE,
        color_mode=common.BigValueColorMode.VALUE if frame.steps else common.BigValueColorMode.NONE,
        reduce_options=common.ReduceDataOptions(calcs=["lastNotNull"], values=False, fields=""),
    )
    mode = dashboard.FieldColorModeId.THRESHOLDS
    return panel("stat", frame, [target], options, source=source, color=mode)


def time_panel(
    frame: Frame,
    targets: Sequence[variants.Dataquery],
    *,
    stacked: bool = False,
    bars: bool = False,
    interval: str | None = None,
    time_from: str | None = None,
) -> dashboard.Panel:
    """Lines over time; areas on top of each other where ``stacked``, or bars."""
    mode = common.StackingMode.NORMAL if stacked else common.StackingMode.NONE
    custom = common.GraphFieldConfig(
        draw_style=common.GraphDrawStyle.BARS if bars else common.GraphDrawStyle.LINE,
        line_width=1,
        fill_opacity=60 if bars else 25 if stacked else 5,
        show_points=common.VisibilityMode.NEVER,
        stacking=common.StackingConfig(mode=mode, group="A"),
        thresholds_style=common.GraphThresholdsStyleConfig(mode=common.GraphThresholdsStyleMode.OFF),
    )
    options = timeseries.Options(legend=fitting_legend(WIDE), tooltip=_tooltip())
    return panel("timeseries", frame, targets, options, custom, interval=interval, time_from=time_from)


def bar_panel(frame: Frame, target: variants.Dataquery) -> dashboard.Panel:
    """A bar per series, longest first as the query sorts them."""
    options = bargauge.Options(
        display_mode=common.BarGaugeDisplayMode.BASIC,
        orientation=common.VizOrientation.HORIZONTAL,
        reduce_options=common.ReduceDataOptions(calcs=["lastNotNull"], values=False, fields=""),
        value_mode=common.BarGaugeValueMode.TEXT,
        legend=common.VizLegendOptions(
            show_legend=False, display_mode=common.LegendDisplayMode.LIST, placement=common.LegendPlacement.BOTTOM
        ),
    )
    return panel("bargauge", frame, [target], options)


def table_panel(
    frame: Frame,
    targets: Sequence[variants.Dataquery],
    *,
    source: common.DataSourceRef = METRICS,
    names: Mapping[str, str] | None = None,
    hidden: Sequence[str] = (),
    join: str | None = None,
) -> dashboard.Panel:
    """A table; ``names`` and ``hidden`` are by column, ``join`` merges the queries' tables by a label."""
    transformations = []
    if join is not None:
        by = {"byField": join, "mode": "outer"}
        transformations.append(dashboard.DataTransformerConfig("joinByField", options=by))
    if names or hidden:
        options = {"excludeByName": dict.fromkeys(hidden, True), "indexByName": {}, "renameByName": dict(names or {})}
        transformations.append(dashboard.DataTransformerConfig("organize", options=options))
    shown = table.Options(show_header=True, cell_height=common.TableCellHeight.SM)
    frame = replace(frame, overrides=(BLANK, *frame.overrides))
    narrow = common.TableFieldOptions(min_width=90)
    return panel("table", frame, targets, shown, narrow, source=source, transformations=transformations)


def heat_panel(frame: Frame, target: prometheus.Dataquery) -> dashboard.Panel:
    """Buckets of a histogram over time, darker where more fell into them."""
    target.format_val = prometheus.PromQueryFormat.HEATMAP
    options = heatmap.Options(
        calculate=False,
        color=heatmap.HeatmapColorOptions(
            mode=heatmap.HeatmapColorMode.SCHEME,
            scheme="Oranges",
            fill="dark-orange",
            scale=heatmap.HeatmapColorScale.EXPONENTIAL,
            exponent=0.5,
            steps=64,
        ),
        y_axis=heatmap.YAxisConfig(unit=frame.unit, axis_placement=common.AxisPlacement.LEFT),
        legend=heatmap.HeatmapLegend(show=True),
        tooltip=heatmap.HeatmapTooltip(mode=common.TooltipDisplayMode.SINGLE, y_histogram=True),
        cell_values=heatmap.CellValues(unit="short"),  # a cell counts; only the axis has the unit
        filter_values=heatmap.FilterValueRange(le=1e-9),
        exemplars=heatmap.ExemplarConfig(color="rgba(255,0,255,0.7)"),
    )
    return panel("heatmap", frame, [target], options)


def state_panel(frame: Frame, target: variants.Dataquery) -> dashboard.Panel:
    """A lane per series, coloured by its value."""
    options = statetimeline.Options(
        show_value=common.VisibilityMode.NEVER,
        align_value=common.TimelineValueAlignment.LEFT,
        legend=_legend(),
        tooltip=_tooltip(),
    )
    custom = statetimeline.FieldConfig(line_width=0, fill_opacity=70)
    mode = dashboard.FieldColorModeId.THRESHOLDS
    return panel("state-timeline", frame, [target], options, custom, color=mode)


def _defaults(frame: Frame, custom: object, color: dashboard.FieldColorModeId) -> dashboard.FieldConfig:
    steps = [dashboard.Threshold(value, name) for value, name in frame.steps or ((None, "text"),)]
    found = {value: dashboard.ValueMappingResult(text=text, color=name) for value, text, name in frame.mappings}
    return dashboard.FieldConfig(
        unit=frame.unit,
        decimals=frame.decimals,
        min_val=frame.low,
        max_val=frame.high,
        no_value=frame.missing,
        thresholds=dashboard.ThresholdsConfig(dashboard.ThresholdsMode.ABSOLUTE, steps),
        mappings=[dashboard.ValueMap(found)] if found else None,
        color=dashboard.FieldColor(mode=color),
        custom=custom,
    )


def _overrides(frame: Frame) -> list[dashboard.DashboardFieldConfigSourceOverrides]:
    return [
        dashboard.DashboardFieldConfigSourceOverrides(
            matcher=dashboard.MatcherConfig("byRegexp" if name.startswith("/") else "byName", name),
            properties=[dashboard.DynamicConfigValue(key, value) for key, value in properties.items()],
        )
        for name, properties in frame.overrides
    ]


def fitting_legend(width: int) -> common.VizLegendOptions:
    """Of a time series in so many columns: beside a wide one, so that all series show; few figures where room lacks."""
    roomy = NARROW < width < WIDE or width > 2 * NARROW
    legend = _legend(*(("mean",) if roomy else ()), "max", "lastNotNull")
    if width >= WIDE:
        legend.placement = common.LegendPlacement.RIGHT
    return legend


def _legend(*calcs: str) -> common.VizLegendOptions:
    mode = common.LegendDisplayMode.TABLE if calcs else common.LegendDisplayMode.LIST
    return common.VizLegendOptions(
        display_mode=mode, placement=common.LegendPlacement.BOTTOM, show_legend=True, calcs=list(calcs)
    )


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions(mode=common.TooltipDisplayMode.MULTI, sort=common.SortOrder.DESCENDING)
