"""Energy over time: sensors, rollups of seconds and minutes, exact pieces within run windows.

Revision 0003, after 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "energyopt_sensors",
        sa.Column("id", _BIG, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_energyopt_sensors"),
        sa.UniqueConstraint("host", "device", "scope", name="uq_energyopt_sensors_host"),
        sqlite_autoincrement=True,
    )
    _rollups()
    _chunks()


def downgrade() -> None:
    for table in ("chunks", "rollups", "sensors"):
        op.drop_table(f"energyopt_{table}")


def _rollups() -> None:
    """By time first: retention and windows over all sensors then touch neighbouring rows only."""
    op.create_table(
        "energyopt_rollups",
        sa.Column("resolution", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("at", _BIG, nullable=False, autoincrement=False),
        sa.Column("sensor_id", _BIG, nullable=False),
        sa.Column("nanojoules", _BIG, nullable=False),
        sa.Column("covered_us", _BIG, nullable=False),
        sa.Column("pieces", sa.Integer(), nullable=False),
        sa.Column("watts_min", sa.Double(), nullable=False),
        sa.Column("watts_max", sa.Double(), nullable=False),
        sa.Column("doubt", sa.Double(), nullable=False),
        sa.Column("edge", sa.Double(), nullable=False),
        sa.Column("sources", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("resolution", "at", "sensor_id", name="pk_energyopt_rollups"),
        sa.ForeignKeyConstraint(
            ["sensor_id"], ["energyopt_sensors.id"], name="fk_energyopt_rollups_sensor_id_energyopt_sensors"
        ),
        sqlite_with_rowid=False,
    )


def _chunks() -> None:
    op.create_table(
        "energyopt_chunks",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("sensor_id", _BIG, nullable=False),
        sa.Column("start_us", _BIG, nullable=False, autoincrement=False),
        sa.Column("end_us", _BIG, nullable=False),
        sa.Column("pieces", sa.Integer(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run", "sensor_id", "start_us", name="pk_energyopt_chunks"),
        sa.ForeignKeyConstraint(
            ["sensor_id"], ["energyopt_sensors.id"], name="fk_energyopt_chunks_sensor_id_energyopt_sensors"
        ),
    )
    op.create_index("ix_energyopt_chunks_start_us", "energyopt_chunks", ["start_us"])
