"""Opening: addresses, pragmas, refusals in one sentence, and two at once."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError, StoreError
from energyopt.core.study import StudySpec, StudyState
from energyopt.store import database
from energyopt.store.database import default_url, make_engine, open_store, parse_url

ONE_SENTENCE = re.compile(r"[^\n]+\.\Z")
NOBODY = 65534


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/home/a"}, "sqlite:////home/a/.local/share/energyopt/energyopt.db"),
        ({"HOME": "/home/a", "XDG_DATA_HOME": "/data"}, "sqlite:////data/energyopt/energyopt.db"),
        ({"XDG_DATA_HOME": "/data"}, "sqlite:////data/energyopt/energyopt.db"),
        ({"HOME": "/home/a", "XDG_DATA_HOME": "data"}, "sqlite:////home/a/.local/share/energyopt/energyopt.db"),
        ({"HOME": "/home/a", "XDG_DATA_HOME": ""}, "sqlite:////home/a/.local/share/energyopt/energyopt.db"),
    ],
)
def test_default_place(environ: dict[str, str], expected: str) -> None:
    assert default_url(environ) == expected


def test_no_default_place_without_a_home() -> None:
    with pytest.raises(ConfigError, match="HOME is not set"):
        default_url({})


def test_addresses_of_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/a")
    here = str(tmp_path)
    expected = {
        "r.db": f"{here}/r.db",
        "sqlite:///r.db": f"{here}/r.db",
        "/a/b?c#d%20.db": "/a/b?c#d%20.db",
        "sqlite:////a/b.db": "/a/b.db",
        "~/r.db": "/home/a/r.db",
    }
    assert {url: parse_url(url).database for url in expected} == expected
    assert {parse_url(url).drivername for url in expected} == {"sqlite"}


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_addresses_of_servers(scheme: str) -> None:
    url = parse_url(f"{scheme}://me:secret@host:5433/db?sslmode=require")
    assert (url.drivername, url.host, url.port, url.database) == ("postgresql+psycopg", "host", 5433, "db")


@pytest.mark.parametrize(
    "url",
    [
        *("", ":memory:", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/x", "sqlite:///x?mode=ro"),
        *("a\0b", "mysql://me:secret@host/db", "postgresql://me:secret@host:port/db", "postgresql+asyncpg://host/db"),
    ],
)
def test_any_other_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="allowed are a path, sqlite:///PATH and postgresql://") as caught:
        open_store(url)
    assert ONE_SENTENCE.match(caught.value.message)
    assert "secret" not in caught.value.message


def test_a_file_of_any_name_is_found_again(tmp_path: Path, spec: StudySpec) -> None:
    path = str(tmp_path / "new" / "folders" / "50% of é?#.db")
    with open_store(path) as store:
        made = store.create_study(spec, {})
    with open_store(path) as store:
        assert store.study("latest") == made
    assert Path(path).is_file()


def test_connections_have_their_pragmas(tmp_path: Path) -> None:
    url = str(tmp_path / "e.db")
    open_store(url).close()
    engine = make_engine(parse_url(url))
    with engine.connect() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    engine.dispose()
    assert found == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 10_000}


def refused(url: str) -> str:
    """The sentence with which opening ``url`` fails."""
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert ONE_SENTENCE.match(caught.value.message)
    return caught.value.message


def test_what_is_not_a_database_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    content = b"These are my notes, and nothing else.\n" * 200
    file.write_bytes(content)
    assert refused(str(file)) == f"The database {file} refused: file is not a database."
    assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]
    assert refused(str(tmp_path)) == f"{tmp_path} is a folder, not a database file."
    assert "cannot be made: Not a directory." in refused(str(file / "below" / "e.db"))


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    file = tmp_path / "e.db"
    file.touch()
    with open_store(str(file)) as store:
        assert store.studies() == []


@contextmanager
def _not_root() -> Iterator[None]:
    """Root may write everywhere, so the tests of refusals are somebody else while they try."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_what_may_not_be_written_is_refused(spec: StudySpec) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open_store(f"{folder}/e.db") as store:
            store.create_study(spec, {})
        (folder / "e.db").chmod(0o444)
        folder.chmod(0o555)
        before = sorted(folder.iterdir())
        with _not_root():
            assert "e.db is not writable" in refused(f"{folder}/e.db")
            assert "new.db is not writable" in refused(f"{folder}/new.db")
            assert "cannot be made: Permission denied." in refused(f"{folder}/sub/new.db")
        assert sorted(folder.iterdir()) == before
        folder.chmod(0o755)


def test_a_locked_database_is_refused_in_time(tmp_path: Path, spec: StudySpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    path = str(tmp_path / "e.db")
    with open_store(path) as store:
        study = store.create_study(spec, {}).id
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="refused: database is locked"):
            store.set_state(study, StudyState.RUNNING)
        assert "refused: database is locked" in refused(path)
        assert store.study(study).state is StudyState.QUEUED  # readers never wait
        other.execute("ROLLBACK")
        other.close()
        store.set_state(study, StudyState.RUNNING)


def test_an_opening_that_never_ends_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "OPEN_SECONDS", 0.05)
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert "is being opened elsewhere" in refused(str(tmp_path / "e.db"))
    os.close(folder)
    open_store(str(tmp_path / "e.db")).close()


def test_a_newer_database_is_left_alone(url: str, spec: StudySpec) -> None:
    with open_store(url) as store:
        store.create_study(spec, {})
    _execute(url, "CREATE TABLE kept AS SELECT version_num FROM energyopt_alembic_version")
    _execute(url, "UPDATE energyopt_alembic_version SET version_num = '9999'")
    message = refused(url)
    assert "is of revision '9999'" in message
    assert "use the newer energyopt" in message
    _execute(url, "UPDATE energyopt_alembic_version SET version_num = (SELECT version_num FROM kept)")
    with open_store(url) as store:
        assert len(store.studies()) == 1


def test_half_a_migration_is_none(url: str) -> None:
    _execute(url, "CREATE TABLE energyopt_events (other INTEGER)")  # the migration stumbles over it, late
    assert "already exists" in refused(url)
    _execute(url, "DROP TABLE energyopt_events")
    with open_store(url) as store:  # had a table of the first attempt stayed, this would stumble too
        assert store.studies() == []


def test_an_unreachable_server_is_refused_without_its_password() -> None:
    message = refused("postgresql://me:secret@127.0.0.1:1/db")
    assert message.startswith("The database postgresql+psycopg://me:***@127.0.0.1:1/db refused: ")
    assert "secret" not in message


def test_a_missing_driver_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert refused("postgresql://host/db") == "PostgreSQL needs its driver: install energyopt[postgres]."


def test_a_dropped_connection_is_made_again(postgres_url: str, spec: StudySpec) -> None:
    with open_store(postgres_url) as store:
        study = store.create_study(spec, {}).id
        _execute(
            postgres_url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        assert store.study(study).id == study


def test_a_vanished_database_is_a_refusal(tmp_path: Path, spec: StudySpec) -> None:
    with open_store(str(tmp_path / "e.db"), clock=FakeClock()) as store:
        store.create_study(spec, {})
        _execute(str(tmp_path / "e.db"), "DROP TABLE energyopt_artifacts")
        with pytest.raises(StoreError, match="no such table: energyopt_artifacts"):
            store.artifacts(store.study("latest").id)


OPEN_WHEN_TOLD = """
import sys
from energyopt.store.database import open_store
print("ready", flush=True)
sys.stdin.readline()
with open_store(sys.argv[1]) as store:
    print(len(store.studies()), flush=True)
"""


def test_processes_may_open_a_new_database_at_once(url: str) -> None:
    openers = [_python(OPEN_WHEN_TOLD, url) for _ in range(3)]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    for opener in openers:
        output, errors = opener.communicate(timeout=60)
        assert (opener.returncode, output) == (0, "0\n"), errors


OPEN_ON_A_FULL_DISK = """
import resource, signal, sys
from energyopt.core.errors import StoreError
from energyopt.store.database import open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    open_store(sys.argv[1])
except StoreError as error:
    print(error)
"""


def test_a_full_disk_leaves_no_half_schema(tmp_path: Path) -> None:
    path = str(tmp_path / "e.db")
    output, errors = _python(OPEN_ON_A_FULL_DISK, path).communicate(timeout=60)
    assert output.startswith(f"The database {path} refused: "), errors
    assert _tables(path) == set()
    with open_store(path) as store:
        assert store.studies() == []


FORK = """
import os, sys
from energyopt.store.database import open_store
with open_store(sys.argv[1]) as store:
    assert store.studies() == []
    children = [os.fork() for _ in range(2)]
    for _ in range(20):
        assert store.studies() == []
    if 0 in children:
        os._exit(0)
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert store.studies() == []
    print(codes)
"""


def test_a_forked_child_gets_connections_of_its_own(url: str) -> None:
    output, errors = _python(FORK, url).communicate(timeout=60)
    assert output == "[0, 0]\n", errors


def _python(script: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _execute(url: str, statement: str) -> None:
    address = parse_url(url)
    if address.get_backend_name() == "sqlite" and address.database is not None:
        os.makedirs(os.path.dirname(address.database), exist_ok=True)
    engine = make_engine(address)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def _tables(path: str) -> set[str]:
    connection = sqlite3.connect(path)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    return names
