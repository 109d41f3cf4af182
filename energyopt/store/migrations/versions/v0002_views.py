"""Views for dashboards: studies, trials with their numbers, the Pareto set, the best so far, knobs.

Revision 0002, after 0001. People and boards read these views, so that tables may change beneath them: a later revision
that rebuilds a table drops the views first and makes them anew. Their columns are the same on SQLite and PostgreSQL;
only moments and JSON are spelled differently. Moments are whole seconds since 1970, flags 0 or 1.
"""

from __future__ import annotations

from typing import NamedTuple

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_METRICS = (
    *("tokens_per_joule", "output_rate", "joules", "joules_error", "joules_per_request", "hit_rate", "slo_violation"),
    *("joules_per_uncached_input_token", "joules_prefill", "joules_decode", "joules_idle", "joules_overhead"),
    *("ttft_p50", "ttft_p90", "ttft_p99", "itl_p50", "itl_p99", "tpot_p90", "e2e_p90", "requests", "failed_requests"),
)
"""Numbers that are columns of the trials' view; a number that a trial lacks is NULL there."""

_VIEWS = ("trials", "studies", "pareto", "best", "knobs")
"""In the order in which they build on each other."""


class _Dialect(NamedTuple):
    """What the two databases spell differently; each field is a template."""

    epoch: str
    number: str
    flag: str
    knobs: str
    knob_value: str
    knob_number: str


_SQLITE = _Dialect(
    epoch="CAST(strftime('%s', {0}) AS INTEGER)",
    number="CASE WHEN json_type({0}, '$.{1}') IN ('integer', 'real') THEN json_extract({0}, '$.{1}') END",
    flag="CASE json_type({0}, '$.{1}') WHEN 'true' THEN 1 WHEN 'false' THEN 0 END",
    knobs="JOIN json_each(t.params) AS k",
    knob_value="CASE k.type WHEN 'null' THEN 'as found' WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' "
    "ELSE CAST(k.value AS TEXT) END",
    knob_number="CASE WHEN k.type IN ('integer', 'real') THEN CAST(k.value AS REAL) END",
)
_POSTGRESQL = _Dialect(
    epoch="CAST(FLOOR(EXTRACT(EPOCH FROM {0})) AS BIGINT)",
    number="CASE WHEN json_typeof(CAST({0} AS json) -> '{1}') = 'number' "
    "THEN CAST(CAST({0} AS json) ->> '{1}' AS double precision) END",
    flag="CASE CAST({0} AS json) ->> '{1}' WHEN 'true' THEN 1 WHEN 'false' THEN 0 END",
    knobs="CROSS JOIN LATERAL json_each(CAST(t.params AS json)) AS k",
    knob_value="CASE json_typeof(k.value) WHEN 'null' THEN 'as found' WHEN 'string' THEN k.value #>> '{}' "
    "ELSE CAST(k.value AS text) END",
    knob_number="CASE WHEN json_typeof(k.value) = 'number' THEN CAST(CAST(k.value AS text) AS double precision) END",
)


_REPETITIONS = ("verify_winner", "verify_baseline")


def upgrade() -> None:
    create_views(_REPETITIONS)


def create_views(repetitions: tuple[str, ...]) -> None:
    """``repetitions`` are the origins of trials that are no points of a search."""
    dialect = _POSTGRESQL if op.get_bind().dialect.name == "postgresql" else _SQLITE
    selects = (_trials(dialect, repetitions), _studies(dialect), _PARETO, _BEST, _knobs(dialect))
    for name, select in zip(_VIEWS, selects, strict=True):
        op.execute(f"CREATE VIEW energyopt_v_{name} AS {select}".replace(":", r"\:"))


def downgrade() -> None:
    for name in reversed(_VIEWS):
        op.execute(f"DROP VIEW energyopt_v_{name}")


def _trials(dialect: _Dialect, repetitions: tuple[str, ...]) -> str:
    """One row a trial. ``value`` is what its study maximises; ``searched`` says that it is no repetition."""
    repeats = ", ".join(f"'{origin}'" for origin in repetitions)
    metric = "(SELECT m.value FROM energyopt_metrics AS m WHERE m.trial_id = t.id AND m.name = '{0}') AS {0}"
    numbers = ", ".join(metric.format(name) for name in _METRICS)
    maximized = """CASE WHEN s.spec LIKE '%"maximize":"output_rate"%' THEN 'output_rate' ELSE 'tokens_per_joule' END"""
    value = f"(SELECT m.value FROM energyopt_metrics AS m WHERE m.trial_id = t.id AND m.name = {maximized})"
    return (
        "SELECT t.study_id, t.number, t.origin, t.pair, t.state, t.outcome, t.attempts, t.error, t.deployment_digest, "
        "t.energy_source, CASE WHEN t.simulated THEN 1 WHEN NOT t.simulated THEN 0 END AS simulated, "
        "CASE WHEN t.outcome = 'feasible' THEN 1 WHEN t.outcome IS NOT NULL THEN 0 END AS feasible, "
        f"CASE WHEN t.origin IN ({repeats}) THEN 0 ELSE 1 END AS searched, "
        f"{dialect.epoch.format('t.created')} AS time, {dialect.epoch.format('t.ended')} AS time_end, "
        f"{value} AS value, {numbers} FROM energyopt_trials AS t JOIN energyopt_studies AS s ON s.id = t.study_id"
    )


def _studies(dialect: _Dialect) -> str:
    """One row a study, with the counts of its trials and, once there is one, its recommendation."""
    counted = "(SELECT COUNT(*) FROM energyopt_v_trials AS t WHERE t.study_id = s.id{0})"
    recommended = ", ".join(
        f"{dialect.number.format('s.recommendation', name)} AS {alias}"
        for name, alias in (
            ("trial", "chosen"),
            ("saving", "saving"),
            ("saving_low", "saving_low"),
            ("saving_high", "saving_high"),
            ("pairs", "pairs"),
        )
    )
    return (
        "SELECT s.id AS study_id, s.sequence, s.name, s.model, s.state, s.error, "
        f"{dialect.epoch.format('s.created')} AS time, {dialect.epoch.format('s.updated')} AS updated, "
        f"{counted.format('')} AS trials, "
        f"{counted.format(' AND t.outcome IS NOT NULL AND t.searched = 1')} AS finished, "
        f"{counted.format(' AND t.feasible = 1 AND t.searched = 1')} AS feasible, "
        f"{recommended}, {dialect.flag.format('s.recommendation', 'verified')} AS verified "
        "FROM energyopt_studies AS s"
    )


_MISSED = """EXISTS (
    SELECT 1 FROM energyopt_v_trials AS r WHERE r.study_id = {0}.study_id
      AND r.deployment_digest = {0}.deployment_digest AND r.searched = 0 AND r.feasible = 0
  )"""
"""Whether the configuration of a trial missed an SLO, or failed, when it was measured again: it is on no front then."""

_PARETO = f"""
SELECT t.study_id, t.number, t.origin, t.feasible, t.value, t.tpot_p90, t.tokens_per_joule, t.output_rate,
  CASE WHEN s.chosen = t.number THEN 1 ELSE 0 END AS chosen,
  CASE WHEN t.feasible = 1 AND NOT {_MISSED.format("t")} AND NOT EXISTS (
    SELECT 1 FROM energyopt_v_trials AS o
    WHERE o.study_id = t.study_id AND o.searched = 1 AND o.feasible = 1 AND o.tpot_p90 < 1e300
      AND o.value >= t.value AND o.tpot_p90 <= t.tpot_p90
      AND (o.value > t.value OR o.tpot_p90 < t.tpot_p90 OR o.number < t.number)
      AND NOT {_MISSED.format("o")}
  ) THEN 1 ELSE 0 END AS on_front
FROM energyopt_v_trials AS t JOIN energyopt_v_studies AS s ON s.study_id = t.study_id
WHERE t.searched = 1 AND t.outcome IS NOT NULL AND t.value IS NOT NULL AND t.tpot_p90 < 1e300
"""
"""Trials with both figures. On the front is a feasible one that no other beats in the value and the time per token."""

_BEST = """
SELECT t.study_id, t.number, t.time, t.time_end, t.outcome, t.value,
  MAX(CASE WHEN t.feasible = 1 THEN t.value END)
    OVER (PARTITION BY t.study_id ORDER BY t.number ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS best
FROM energyopt_v_trials AS t WHERE t.searched = 1 AND t.outcome IS NOT NULL
"""
"""Finished trials in order, each with the best feasible value up to it; NULL before the first."""


def _knobs(dialect: _Dialect) -> str:
    """One row per trial and knob: its value as text, and as a number where it is one."""
    return (
        f"SELECT t.study_id, t.number, k.key AS knob, {dialect.knob_value} AS setting, "
        f"{dialect.knob_number} AS setting_number FROM energyopt_trials AS t {dialect.knobs}"
    )
