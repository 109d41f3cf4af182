"""A backup is what was committed at one moment, and a restored database serves like the one it was taken of."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError, StoreError
from energyopt.core.jobs import Scope
from energyopt.core.results import RunResult
from energyopt.core.study import Artifact, Origin, StudySpec, TrialOutcome
from energyopt.store.backup import backup_file
from energyopt.store.service_store import open_service_store

WRITER = """
import sys
from energyopt.store.database import open_store
store = open_store(sys.argv[1])
study = store.study("latest").id
for number in range(100_000):
    store.add_event(study, "tick", {"number": number})
    if number == 20:
        print("going", flush=True)
"""


def fill(url: str, spec: StudySpec, deployment: Deployment, result: RunResult) -> tuple[str, str]:
    """A study with everything that belongs to one, and a key."""
    with_everything = open_service_store(url)
    study = with_everything.jobs.submit(spec, {}, labels={"team": "search"})[0]
    with_everything.studies.add_trial(study, {"a": 1.5}, deployment, Origin.BASELINE)
    with_everything.studies.start_attempt(study, 0, "x")
    with_everything.studies.finish_trial(study, 0, TrialOutcome.FEASIBLE, result=result)
    with_everything.studies.add_artifact(
        study, Artifact(name="a", path="/a", media_type="text/plain", sha256="", bytes=1)
    )
    secret = with_everything.keys.create("ci", [Scope.READ], None)[1]
    with_everything.close()
    return study, secret


def same(original: str, restored: str, study: str, secret: str) -> None:
    before, after = open_service_store(original), open_service_store(restored)
    assert after.studies.study(study) == before.studies.study(study)
    assert after.studies.trials(study) == before.studies.trials(study)
    assert after.studies.artifacts(study) == before.studies.artifacts(study)
    assert after.jobs.job(study) == before.jobs.job(study)
    assert after.keys.find(secret) == before.keys.find(secret) is not None
    after.studies.add_event(study, "after", {})  # it can be written to
    before.close()
    after.close()


def test_a_file_is_copied_while_another_process_writes(
    tmp_path: Path, spec: StudySpec, deployment: Deployment, result: RunResult
) -> None:
    url, copy = f"sqlite:///{tmp_path}/e.db", tmp_path / "copy.db"
    study, secret = fill(url, spec, deployment, result)
    with subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "going\n"
        steps: list[tuple[int, int]] = []
        backup_file(url, copy, lambda done, total: steps.append((done, total)))
        writer.kill()
    assert steps[-1][0] == steps[-1][1] > 0
    restored = open_service_store(f"sqlite:///{copy}")
    ticks = [event.data["number"] for event in restored.studies.events(study, limit=100_000) if event.kind == "tick"]
    restored.close()
    assert len(ticks) > 20
    assert ticks == list(range(len(ticks))), "a prefix of what was written, without a gap"
    same(url, f"sqlite:///{copy}", study, secret)
    assert sorted(path.name for path in tmp_path.iterdir() if "partial" in path.name) == []


@pytest.fixture
def second_url(postgres_server: str, postgres_url: str) -> Iterator[str]:
    """Another empty database of the same server."""
    address = make_url(postgres_server)
    name = make_url(postgres_url).database + "_restored"  # type: ignore[operator]
    admin = create_engine(address.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield address.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


def test_a_dump_of_postgresql_is_restored(
    postgres_url: str, second_url: str, tmp_path: Path, spec: StudySpec, deployment: Deployment, result: RunResult
) -> None:
    study, secret = fill(postgres_url, spec, deployment, result)
    dump = str(tmp_path / "energyopt.dump")
    subprocess.run(["pg_dump", "--format=custom", f"--file={dump}", postgres_url], check=True, timeout=60)
    subprocess.run(["pg_restore", "--exit-on-error", f"--dbname={second_url}", dump], check=True, timeout=60)
    same(postgres_url, second_url, study, secret)


def test_what_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    url, there = f"sqlite:///{tmp_path}/e.db", tmp_path / "there"
    with pytest.raises(StoreError, match="no database"):
        backup_file(url, tmp_path / "copy.db")
    open_service_store(url).close()
    there.write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="exists"):
        backup_file(url, there)
    assert there.read_text(encoding="utf-8") == "mine"
    with pytest.raises(ConfigError, match="pg_dump"):
        backup_file("postgresql://localhost/x", tmp_path / "copy.db")
    with pytest.raises(StoreError, match="cannot be copied"):
        backup_file(url, tmp_path / "no" / "copy.db")
    (tmp_path / "no.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="cannot be copied"):
        backup_file(f"sqlite:///{tmp_path}/no.db", tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
