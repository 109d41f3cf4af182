"""Runs that belong to no study.

Revision 0004, after 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "energyopt_runs",
        sa.Column("sequence", _BIG, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("valid", sa.Boolean(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_energyopt_runs"),
        sa.UniqueConstraint("id", name="uq_energyopt_runs_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_energyopt_runs_kind", "energyopt_runs", ["kind"])


def downgrade() -> None:
    op.drop_table("energyopt_runs")
