"""Opens a database: its address, its pragmas, its schema. The rest of the store sees an engine and nothing else."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DisconnectionError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.errors import ConfigError, StoreError
from energyopt.core.places import data_folder

from .migrations import migrate
from .refusal import refusal
from .repository import SqlStudyStore

BUSY_SECONDS = 10.0
"""How long a writer waits for another one before the database counts as locked."""

OPEN_SECONDS = 30.0
"""How long opening waits for another process that creates or migrates the same database."""

_ADVISORY_LOCK = 0x656E657267796F70  # "energyop": any fixed number that other programs are unlikely to take
_ALLOWED = "allowed are a path, sqlite:///PATH and postgresql://USER:PASSWORD@HOST/DATABASE"


def default_url(environ: Mapping[str, str]) -> str:
    """Where results go if nobody says: ``$XDG_DATA_HOME/energyopt/energyopt.db`` or below ``~/.local/share``.

    A relative XDG_DATA_HOME is ignored, as its specification asks. Raises ConfigError if HOME is needed and unset.
    """
    return f"sqlite:///{data_folder(environ) / 'energyopt.db'}"


def database_file(url: str) -> str | None:
    """The absolute path of the file behind ``url``; None for a server. Raises ConfigError."""
    address = parse_url(url)
    return address.database if _is_file(address) else None


def open_store(url: str, *, clock: Clock | None = None) -> SqlStudyStore:
    """The store at ``url``, created or migrated to this version if need be.

    ``url`` is ``sqlite:///PATH``, a plain path (its folder is made) or ``postgresql://…``. Raises ConfigError for any
    other address, StoreError if the database cannot be reached, written or understood; then it is as it was.
    """
    engine, name = open_engine(url)
    return SqlStudyStore(engine, clock or MonotonicClock(), name)


def open_engine(url: str) -> tuple[Engine, str]:
    """An engine on the database at ``url``, created or migrated if need be, and what messages call it.

    Raises what ``open_store`` raises. The caller disposes of the engine.
    """
    address = parse_url(url)
    name = (address.database or "") if _is_file(address) else address.render_as_string(hide_password=True)
    if _is_file(address):
        _prepare_file(name)
    engine = make_engine(address)
    try:
        with _alone(address):
            _bring_up_to_date(engine, address, name)
    except BaseException:
        engine.dispose()
        raise
    return engine, name


def _bring_up_to_date(engine: Engine, address: URL, name: str) -> None:
    """Migrate in one transaction that excludes every other writer, so that half a schema is never seen."""
    try:
        with engine.execution_options(sqlite_begin="IMMEDIATE").begin() as connection:
            if not _is_file(address):
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
            migrate(connection, name)
    except SQLAlchemyError as error:
        raise refusal(error, name) from error


def parse_url(url: str) -> URL:
    """The address in SQLAlchemy's form. Raises ConfigError; a password is never repeated in the message."""
    if "://" not in url:
        return URL.create("sqlite", database=_path(url, url))
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        if "?" in rest or not rest.startswith("/"):
            raise ConfigError(f"{url!r} is not a database address: {_ALLOWED}, without options for SQLite.")
        return URL.create("sqlite", database=_path(rest[1:], url))
    if scheme not in ("postgresql", "postgresql+psycopg"):
        raise ConfigError(f"{scheme}:// is not a kind of database that energyopt knows: {_ALLOWED}.")
    try:
        return make_url(url).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError) as error:  # ValueError: the port is not a number
        raise ConfigError(f"The {scheme}:// address cannot be read: {_ALLOWED}.") from error


def make_engine(address: URL) -> Engine:
    """An engine whose connections are ready for use by threads, and by a child that was forked with them."""
    arguments: dict[str, object] = {"timeout": BUSY_SECONDS}
    if not _is_file(address):
        arguments = {} if "connect_timeout" in address.query else {"connect_timeout": int(BUSY_SECONDS)}
    try:
        engine = create_engine(address, connect_args=arguments)
    except (ImportError, NoSuchModuleError) as error:
        raise StoreError("PostgreSQL needs its driver: install energyopt[postgres].") from error
    if _is_file(address):
        event.listen(engine, "connect", _set_pragmas)
        event.listen(engine, "begin", _begin)
    event.listen(engine, "connect", _note_process)
    event.listen(engine, "checkout", partial(_refuse_dead, engine.dialect))
    return engine


def _path(path: str, url: str) -> str:
    if path in ("", ":memory:") or "\0" in path:
        raise ConfigError(f"{url!r} names no database file: {_ALLOWED}.")
    return os.path.abspath(os.path.expanduser(path))


def _is_file(address: URL) -> bool:
    return address.get_backend_name() == "sqlite"


def _prepare_file(path: str) -> None:
    """Make the folder; refuse what cannot be a database before anything is made."""
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise StoreError(f"{path} is a folder, not a database file.")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise StoreError(f"The folder {folder} for the database cannot be made: {error.strerror}.") from error
    needed = [folder, path] if os.path.exists(path) else [folder]
    if not all(os.access(place, os.W_OK, effective_ids=True) for place in needed):
        raise StoreError(f"The database {path} is not writable: the file and its folder must be.")


@contextmanager
def _alone(address: URL) -> Iterator[None]:
    """Keep other openers of files in the same folder out.

    SQLite's switch to WAL, unlike its transactions, does not wait for another process that does the same. The lock is
    the folder's own, so no extra file is left behind; it ends with the process that holds it.
    """
    if not _is_file(address) or address.database is None:
        yield
        return
    folder = os.open(os.path.dirname(address.database), os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + OPEN_SECONDS
        while not _try_lock(folder):
            if time.monotonic() > deadline:
                raise StoreError(f"The database {address.database} is being opened elsewhere for {OPEN_SECONDS:g} s.")
            time.sleep(0.01)
        yield
    finally:
        os.close(folder)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _set_pragmas(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions are begun by _begin, so that DDL is inside them too
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA journal_mode=WAL")
    row = cursor.fetchone()
    if row is not None and row[0] == "wal":  # NORMAL is only safe with it, and some file systems cannot have it
        cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _begin(connection: Connection) -> None:
    """Writers begin with the write lock: a reader that turns writer is refused at once instead of waiting."""
    kind = connection.get_execution_options().get("sqlite_begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {kind}")


def _note_process(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    entry.info["pid"] = os.getpid()


def _refuse_dead(
    dialect: Dialect, connection: DBAPIConnection, entry: ConnectionPoolEntry, proxy: PoolProxiedConnection
) -> None:
    """Let the pool replace a connection that a parent made before a fork, or that the server has dropped.

    SQLAlchemy's own ping comes before this, which would talk over the parent's socket; hence ours, after.
    """
    if entry.info["pid"] != os.getpid():
        # Forgotten rather than closed: a goodbye on the shared socket would end the parent's session.
        entry.dbapi_connection = None  # type: ignore[misc]  # SQLAlchemy documents this assignment, its types do not
        proxy.dbapi_connection = None  # type: ignore[misc]
        raise DisconnectionError("this connection belongs to another process")
    try:
        dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        raise DisconnectionError("this connection was dropped") from error
