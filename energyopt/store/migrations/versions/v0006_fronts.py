"""Pareto fronts are kept as trials end, instead of being found among all of them at every question.

A trial that measures a configuration again is no point of a search: neither there nor in the views.

Revision 0006, after 0005.
"""

from __future__ import annotations

from itertools import product

import sqlalchemy as sa
from alembic import op

from energyopt.store.migrations.versions import v0002_views

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_REPETITIONS = ("verify_winner", "verify_baseline", "repeat")
_BENEFITS = ("tokens_per_joule", "output_rate")
_LATENCIES = ("tpot_p90", "ttft_p90", "itl_p99")


def upgrade() -> None:
    op.create_table(
        "energyopt_fronts",
        sa.Column("study_id", sa.Text(), nullable=False),
        sa.Column("benefit", sa.Text(), nullable=False),
        sa.Column("latency", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("x", sa.Double(), nullable=False),
        sa.Column("y", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("study_id", "benefit", "latency", "number", name="pk_energyopt_fronts"),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["energyopt_studies.id"],
            name="fk_energyopt_fronts_study_id_energyopt_studies",
            ondelete="CASCADE",
        ),
    )
    for benefit, latency in product(_BENEFITS, _LATENCIES):
        op.execute(_kept_until_now(benefit, latency))
    v0002_views.downgrade()
    v0002_views.create_views(_REPETITIONS)
    op.drop_index("ix_energyopt_trials_front", "energyopt_trials")
    op.create_index("ix_energyopt_trials_outcome", "energyopt_trials", ["study_id", "outcome"])


def downgrade() -> None:
    v0002_views.downgrade()
    v0002_views.upgrade()
    op.drop_index("ix_energyopt_trials_outcome", "energyopt_trials")
    front = ["study_id", "outcome", "tpot_p90", "tokens_per_joule", "output_rate", "origin"]
    op.create_index("ix_energyopt_trials_front", "energyopt_trials", front)
    op.drop_table("energyopt_fronts")


def _kept_until_now(benefit: str, latency: str) -> str:
    """Trials with more benefit than all that come before them by latency (of equals: by more benefit, by number).

    A configuration that missed an SLO when it was measured again has none.
    """
    repeats = ", ".join(f"'{origin}'" for origin in _REPETITIONS)
    return f"""
INSERT INTO energyopt_fronts (study_id, benefit, latency, number, x, y)
SELECT study_id, '{benefit}', '{latency}', number, x, y FROM (
  SELECT study_id, number, {benefit} AS x, {latency} AS y, MAX({benefit}) OVER (
    PARTITION BY study_id ORDER BY {latency}, {benefit} DESC, number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS before
  FROM energyopt_trials AS t
  WHERE outcome = 'feasible' AND origin NOT IN ({repeats})
    AND {benefit} < 1e300 AND {latency} < 1e300
    AND NOT EXISTS (
      SELECT 1 FROM energyopt_trials AS r WHERE r.study_id = t.study_id
        AND r.deployment_digest = t.deployment_digest AND r.origin IN ({repeats}) AND r.outcome <> 'feasible'
    )
) AS ranked WHERE before IS NULL OR x > before"""
