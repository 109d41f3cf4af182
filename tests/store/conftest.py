"""Stores of every kind, a PostgreSQL of our own, and things to put into them."""

from __future__ import annotations

import glob
import math
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.results import EnergyReading, RunResult, Scope, Source, VerdictRecord, summarize, total_energy
from energyopt.core.study import Budget, Knob, Space, StudySpec
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Joules, Seconds, Tokens
from energyopt.core.workload import Session, Turn, Workload
from energyopt.store.database import open_store
from energyopt.store.memory import MemoryStudyStore


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def deployment() -> Deployment:
    return Deployment(decode=PoolConfig(engine=EngineConfig(model="smollm2-135m", max_num_seqs=8)))


@pytest.fixture
def spec(deployment: Deployment) -> StudySpec:
    session = Session(id="s0", turns=(Turn(text='a\0 "quote" and 🙂', output_tokens=3, think_time=Seconds(0.1)),))
    workload = Workload(name="chat", seed=7, sessions=(session,), concurrency=2)
    knobs = (
        Knob(path="decode.engine.max_num_seqs", values=(1, 2.0, True, None, "auto")),
        Knob(path="decode.power.cap", values=(None, 300.5)),
    )
    return StudySpec(
        name="café",
        baseline=deployment,
        space=Space(knobs=knobs),
        workload=workload,
        verify_workload=workload,
        slos=("ttft:p90<500ms",),
        budget=Budget(trials=3),
    )


@pytest.fixture
def result() -> RunResult:
    """A run with everything in it: infinite latencies, mixed sources, a violated and an unknown verdict."""
    readings = (
        EnergyReading(
            device="GPU-1",
            joules=Joules(0.1 + 0.2),
            error=Joules(0.01),
            scope=Scope.GPU,
            source=Source.COUNTER,
            window=Seconds(2.5),
        ),
        EnergyReading(
            device="cpu",
            joules=Joules(1.5),
            error=Joules(math.inf),
            scope=Scope.SOCKET,
            source=Source.ESTIMATED,
            window=Seconds(2.5),
        ),
    )
    latency = summarize([0.25, 0.5, math.inf])
    assert latency is not None
    verdicts = tuple(
        VerdictRecord(
            slo=slo, state=state, estimate=excess, bound=None, violation=excess, samples=3, confidence=0.95, note="n"
        )
        for slo, state, excess in (("ttft:p90<500ms", "violated", math.inf), ("itl:p99<50ms", "met", -0.5))
    )
    return RunResult(
        window=Seconds(2.5),
        requests=3,
        failed_requests=1,
        prompt_tokens=Tokens(100),
        cached_tokens=Tokens(40),
        output_tokens=Tokens(9),
        latencies={"ttft": latency},
        verdicts=verdicts,
        energy=total_energy(readings),
        readings=readings,
        power_valid=True,
        hits_by_tier={"device": 40},
        peak_memory_bytes=2**40,
    )


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a server that may create databases: a given one, or Debian's started here without fsync."""
    given = os.environ.get("ENERGYOPT_TEST_PG_URL")
    if given:
        yield given
        return
    binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=_release)
    prefix = _as_postgres()
    if not binaries or prefix is None:
        reason = "no PostgreSQL: set ENERGYOPT_TEST_PG_URL or install the package postgresql"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="energyopt-pg-"))
    data, binary = folder / "data", Path(binaries[-1])
    if prefix:
        shutil.chown(folder, "postgres", "postgres")
    try:
        initdb = [str(binary / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        _run([*prefix, *initdb, "--locale=C", "--no-sync"], folder)
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"listen_addresses=''\nunix_socket_directories='{folder}'\nfsync=off\n")
        control = [*prefix, str(binary / "pg_ctl"), "-D", str(data), "-w"]
        _run([*control, "-l", str(folder / "log"), "start"], folder)
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            _run([*control, "-m", "immediate", "stop"], folder)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A fresh, empty database."""
    address, name = make_url(postgres_server), f"energyopt_test_{uuid.uuid4().hex}"
    admin = create_engine(address.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield address.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database that does not hold anything yet, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'results' / 'energyopt.db'}"
    address: str = request.getfixturevalue("postgres_url")
    return address


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[StudyStore]:
    """A store of every kind, on the fake clock."""
    if request.param == "memory":
        yield MemoryStudyStore(clock)
        return
    address = f"sqlite:///{tmp_path}/e.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with open_store(address, clock=clock) as opened:
        yield opened


@pytest.fixture
def study(store: StudyStore, spec: StudySpec) -> str:
    """The id of a study that was just made."""
    return store.create_study(spec, {"cpu": "x"}).id


def _release(path: str) -> tuple[int, ...]:
    return tuple(int(part) for part in path.split("/")[-2].split(".") if part.isdigit())


def _as_postgres() -> list[str] | None:
    """What to put before a command so that it does not run as root (the server refuses); None if nothing helps."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        return None
    if shutil.which("runuser"):
        return ["runuser", "-u", "postgres", "--"]
    if shutil.which("setpriv"):
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"]
    return None


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    if done.returncode:
        log = folder / "log"
        pytest.fail(f"{command[-1]}: {done.stdout}{log.read_text() if log.exists() else ''}")
