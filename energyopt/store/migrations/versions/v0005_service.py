"""The service: submitted studies and their labels, keys, the audit log, and trials that can be sorted by SQL.

Revision 0005, after 0004.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_COPIED = ("tokens_per_joule", "output_rate", "ttft_p90", "itl_p99", "tpot_p90")


def upgrade() -> None:
    _jobs()
    _keys()
    _studies()
    for name in _COPIED:
        op.add_column("energyopt_trials", sa.Column(name, sa.Double(), nullable=True))
        op.execute(
            f"UPDATE energyopt_trials SET {name} = (SELECT m.value FROM energyopt_metrics AS m"
            f" WHERE m.trial_id = energyopt_trials.id AND m.name = '{name}')"
        )
    front = ["study_id", "outcome", "tpot_p90", "tokens_per_joule", "output_rate", "origin"]
    op.create_index("ix_energyopt_trials_front", "energyopt_trials", front)
    op.create_index("ix_energyopt_events_of_study", "energyopt_events", ["study_id", "id"])


def downgrade() -> None:
    op.drop_index("ix_energyopt_events_of_study", "energyopt_events")
    op.drop_index("ix_energyopt_trials_front", "energyopt_trials")
    for name in reversed(_COPIED):
        op.drop_column("energyopt_trials", name)
    for name in ("maximize", "slos"):
        op.drop_column("energyopt_studies", name)
    for table in ("audit", "keys", "idempotency", "labels", "jobs"):
        op.drop_table(f"energyopt_{table}")


def _studies() -> None:
    """Copies of what lists show; read here in Python, as PostgreSQL's JSON refuses the NUL that a text may hold."""
    for name in ("slos", "maximize"):
        op.add_column("energyopt_studies", sa.Column(name, sa.Text(), nullable=True))
    connection = op.get_bind()
    change = sa.text("UPDATE energyopt_studies SET slos = :slos, maximize = :maximize WHERE sequence = :sequence")
    for (sequence,) in connection.execute(sa.text("SELECT sequence FROM energyopt_studies")).all():
        one = sa.text("SELECT spec FROM energyopt_studies WHERE sequence = :sequence")
        spec = json.loads(str(connection.execute(one, {"sequence": sequence}).scalar_one()))
        values = {"slos": json.dumps(spec.get("slos", [])), "maximize": spec.get("maximize", "tokens_per_joule")}
        connection.execute(change, {"sequence": sequence, **values})


def _jobs() -> None:
    op.create_table(
        "energyopt_jobs",
        sa.Column("study_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("submitted_by", sa.Text(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("study_id", name="pk_energyopt_jobs"),
        _study("jobs"),
    )
    op.create_index("ix_energyopt_jobs_tenant", "energyopt_jobs", ["tenant"])
    op.create_table(
        "energyopt_labels",
        sa.Column("study_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("study_id", "name", name="pk_energyopt_labels"),
        _study("labels"),
    )
    op.create_index("ix_energyopt_labels_name", "energyopt_labels", ["name"])
    op.create_table(
        "energyopt_idempotency",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("study_id", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_energyopt_idempotency"),
    )


def _keys() -> None:
    op.create_table(
        "energyopt_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_energyopt_keys"),
    )
    op.create_table(
        "energyopt_audit",
        sa.Column("id", _BIG, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_energyopt_audit"),
        sqlite_autoincrement=True,
    )


def _study(table: str) -> sa.ForeignKeyConstraint:
    name = f"fk_energyopt_{table}_study_id_energyopt_studies"
    return sa.ForeignKeyConstraint(["study_id"], ["energyopt_studies.id"], name=name, ondelete="CASCADE")
