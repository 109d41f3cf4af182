"""Studies, trials, attempts, metrics, energy, events, artifacts.

Revision 0001, after nothing. The names of constraints are spelled out: a revision describes the past and must not
change when the naming convention does.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _studies()
    _trials()
    _parts_of_a_trial()
    _parts_of_a_study()


def downgrade() -> None:
    for table in ("artifacts", "events", "energy", "metrics", "attempts", "trials", "studies"):
        op.drop_table(f"energyopt_{table}")


def _studies() -> None:
    op.create_table(
        "energyopt_studies",
        sa.Column("sequence", _BIG, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created", _MOMENT, nullable=False),
        sa.Column("updated", _MOMENT, nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", _MOMENT),
        sa.Column("error", sa.Text()),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("recommendation", sa.Text()),
        sa.PrimaryKeyConstraint("sequence", name="pk_energyopt_studies"),
        sa.UniqueConstraint("id", name="uq_energyopt_studies_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_energyopt_studies_state", "energyopt_studies", ["state"])


def _trials() -> None:
    op.create_table(
        "energyopt_trials",
        sa.Column("id", _BIG, nullable=False),
        sa.Column("study_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("pair", sa.Integer()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created", _MOMENT, nullable=False),
        sa.Column("ended", _MOMENT),
        sa.Column("error", sa.Text()),
        sa.Column("deployment_digest", sa.Text(), nullable=False),
        sa.Column("energy_source", sa.Text()),
        sa.Column("simulated", sa.Boolean()),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("deployment", sa.Text(), nullable=False),
        sa.Column("result", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_energyopt_trials"),
        sa.UniqueConstraint("study_id", "number", name="uq_energyopt_trials_study_id"),
        _of_study("trials"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_energyopt_trials_deployment_digest", "energyopt_trials", ["deployment_digest"])


def _parts_of_a_trial() -> None:
    op.create_table(
        "energyopt_attempts",
        sa.Column("trial_id", _BIG, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("started", _MOMENT, nullable=False),
        sa.Column("ended", _MOMENT),
        sa.Column("ending", sa.Text()),
        sa.PrimaryKeyConstraint("trial_id", "number", name="pk_energyopt_attempts"),
        _of_trial("attempts"),
    )
    op.create_table(
        "energyopt_metrics",
        sa.Column("trial_id", _BIG, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", "name", name="pk_energyopt_metrics"),
        _of_trial("metrics"),
    )
    op.create_index("ix_energyopt_metrics_name", "energyopt_metrics", ["name"])
    op.create_table(
        "energyopt_energy",
        sa.Column("trial_id", _BIG, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("joules", sa.Double(), nullable=False),
        sa.Column("error", sa.Double(), nullable=False),
        sa.Column("duration", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", "position", name="pk_energyopt_energy"),
        _of_trial("energy"),
    )


def _parts_of_a_study() -> None:
    op.create_table(
        "energyopt_events",
        sa.Column("id", _BIG, nullable=False),
        sa.Column("study_id", sa.Text(), nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_energyopt_events"),
        _of_study("events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_energyopt_events_study_id", "energyopt_events", ["study_id"])
    op.create_table(
        "energyopt_artifacts",
        sa.Column("study_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("bytes", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("study_id", "name", name="pk_energyopt_artifacts"),
        _of_study("artifacts"),
    )


def _of_study(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["study_id"],
        ["energyopt_studies.id"],
        name=f"fk_energyopt_{table}_study_id_energyopt_studies",
        ondelete="CASCADE",
    )


def _of_trial(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["trial_id"],
        ["energyopt_trials.id"],
        name=f"fk_energyopt_{table}_trial_id_energyopt_trials",
        ondelete="CASCADE",
    )
