"""Trials are given out by lease, to workers that need not reach the database; large lists are sorted by an index.

Revision 0007, after 0006.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SORTED_BY = ("tokens_per_joule", "output_rate", "ttft_p90", "itl_p99", "tpot_p90")
_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "energyopt_leads",
        sa.Column("study_id", sa.Text(), nullable=False),
        sa.Column("leader", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=True),
        sa.Column("verifier", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("study_id", name="pk_energyopt_leads"),
        _cascade("leads", "study_id", "studies"),
    )
    op.create_table(
        "energyopt_leases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("trial_id", _BIG, nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("expires", _MOMENT, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("fraction", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_energyopt_leases"),
        sa.UniqueConstraint("trial_id", name="uq_energyopt_leases_trial_id"),
        sa.UniqueConstraint("worker", name="uq_energyopt_leases_worker"),
        _cascade("leases", "trial_id", "trials"),
    )
    op.create_table(
        "energyopt_lease_devices",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("host", "device", name="pk_energyopt_lease_devices"),
        _cascade("lease_devices", "lease_id", "leases"),
    )
    op.create_index("ix_energyopt_lease_devices_lease_id", "energyopt_lease_devices", ["lease_id"])
    op.create_table(
        "energyopt_workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("seen", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_energyopt_workers"),
    )
    op.create_index("ix_energyopt_workers_seen", "energyopt_workers", ["seen"])
    op.drop_index("ix_energyopt_trials_outcome", "energyopt_trials")
    op.create_index("ix_energyopt_trials_outcome", "energyopt_trials", ["study_id", "outcome", "state"])
    for figure in _SORTED_BY:
        op.create_index(f"ix_energyopt_trials_{figure}", "energyopt_trials", ["study_id", figure])


def downgrade() -> None:
    for figure in reversed(_SORTED_BY):
        op.drop_index(f"ix_energyopt_trials_{figure}", "energyopt_trials")
    op.drop_index("ix_energyopt_trials_outcome", "energyopt_trials")
    op.create_index("ix_energyopt_trials_outcome", "energyopt_trials", ["study_id", "outcome"])
    for table in ("workers", "lease_devices", "leases", "leads"):
        op.drop_table(f"energyopt_{table}")


def _cascade(table: str, column: str, other: str) -> sa.ForeignKeyConstraint:
    name = f"fk_energyopt_{table}_{column}_energyopt_{other}"
    return sa.ForeignKeyConstraint([column], [f"energyopt_{other}.id"], name=name, ondelete="CASCADE")
