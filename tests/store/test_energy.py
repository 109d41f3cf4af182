"""Energy over time in SQL: exact sums, nothing lost or doubled by kills, restarts and refusals, old rows pruned."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError, NotFoundError, StoreError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds
from energyopt.store import energy_writer
from energyopt.store.chunk_codec import decode_chunk, encode_chunk
from energyopt.store.database import open_engine
from energyopt.store.energy_history import EnergyHistory
from energyopt.store.energy_rows import NANOJOULES, Packed
from energyopt.store.energy_sql import Row, write_seconds
from energyopt.store.energy_writer import Retention, SqlEnergyWriter
from telemetry.ports import EnergyChunk, EnergySink, SensorId

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
GPU = SensorId("GPU-1", Scope.GPU)


def piece(
    at: float,
    length: float = 0.1,
    joules: float = 30.0,
    *,
    sensor: SensorId = GPU,
    source: Source = Source.COUNTER,
    error: float = 60.0,
) -> EnergyChunk:
    """A piece that begins ``at`` seconds after BEGIN, on a clock that stood at 1000 s then."""
    return EnergyChunk(
        sensor=sensor,
        start=Seconds(1000 + at),
        end=Seconds(1000 + at + length),
        date=BEGIN + timedelta(seconds=at),
        joules=Joules(joules),
        error=Joules(error),
        edge=Joules(error),
        source=source,
    )


def pieces(start: float, end: float, *, rate: int = 10, sensor: SensorId = GPU) -> list[EnergyChunk]:
    """Pieces of 1/rate seconds whose joules differ, so that a lost or doubled one shows in the sum."""
    first, last = round(start * rate), round(end * rate)
    return [piece(tick / rate, 1 / rate, 30 + tick % 7 / 3, sensor=sensor) for tick in range(first, last)]


def nanojoules(parts: Sequence[EnergyChunk]) -> int:
    return sum(round(part.joules * NANOJOULES) for part in parts)


@dataclass
class Kept:
    """An open database with its writer and its reader."""

    writer: SqlEnergyWriter
    history: EnergyHistory

    def stored(self, resolution: int, end: float = 1e6) -> list[tuple[float, int, float]]:
        """Begin, nanojoules and covered seconds of every point of the first sensor."""
        points = self.history.energy(BEGIN, BEGIN + timedelta(seconds=end), resolution=resolution, device="GPU-1")
        return [((p.at - BEGIN).total_seconds(), round(p.joules * NANOJOULES), p.covered) for p in points]

    def count(self, table: str) -> int:
        with self.writer._engine.connect() as connection:
            return int(str(connection.execute(text(f"SELECT COUNT(*) FROM energyopt_{table}")).scalar()))


@contextmanager
def keeping(url: str, clock: FakeClock | None = None, **options: object) -> Iterator[Kept]:
    engine, name = open_engine(url)
    writer = SqlEnergyWriter(engine, clock or FakeClock(date=BEGIN), name, "host-1", flush_every=0.01, **options)  # type: ignore[arg-type]
    try:
        yield Kept(writer, EnergyHistory(engine, name))
    finally:
        writer.close()
        engine.dispose()


def written(kept: Kept, rows: int, seconds: float = 20.0) -> None:
    """Wait until so many rows of seconds are written."""
    end = time.monotonic() + seconds
    while kept.writer.stats.rows_written < rows:
        assert time.monotonic() < end, kept.writer.stats
        time.sleep(0.005)


def test_seconds_and_minutes_sum_exactly(url: str) -> None:
    """kepler#1837: sums that drift."""
    parts = pieces(0.5, 150)
    with keeping(url) as kept:
        sink: EnergySink = kept.writer
        for at in range(0, len(parts), 10):
            sink.accept(parts[at : at + 10])
    with keeping(url) as kept:
        seconds, minutes = kept.stored(1), kept.stored(60)
        assert [at for at, _, _ in seconds] == list(range(150))
        assert seconds[0][2] == pytest.approx(0.5)
        assert sum(amount for _, amount, _ in seconds) == nanojoules(parts)
        assert [at for at, _, _ in minutes] == [0, 60, 120]
        assert sum(amount for _, amount, _ in minutes) == nanojoules(parts)
        assert [covered for _, _, covered in minutes] == pytest.approx([59.5, 60, 30])
        assert kept.stored(60, 60)[0][1] == nanojoules(pieces(0.5, 60))
        assert sum(amount for _, amount, _ in kept.stored(7)) == nanojoules(parts)


def test_a_point_says_everything(url: str) -> None:
    cpu = SensorId("cpu:0", Scope.CPU_PACKAGE)
    with keeping(url) as kept:
        kept.writer.accept(
            [
                piece(0.0, 0.5, 100.0, error=6.0),
                piece(0.5, 0.25, 100.0, source=Source.INTEGRATED, error=4.0),
                piece(0.0, 1.0, 50.0, sensor=cpu, source=Source.ESTIMATED),
            ]
        )
    with keeping(url) as kept:
        points = kept.history.energy(BEGIN, BEGIN + timedelta(seconds=1), resolution=1)
        point, cpu_point = sorted(points, key=lambda point: point.device)  # databases order letters by their locale
        assert (point.host, point.device, point.scope, point.at) == ("host-1", "GPU-1", "gpu", BEGIN)
        assert (point.joules, point.covered, point.error) == (200.0, 0.75, 6.0)
        assert point.watts == pytest.approx(200 / 0.75)
        assert (point.watts_min, point.watts_max) == (200.0, 400.0)
        assert point.sources == (Source.COUNTER, Source.INTEGRATED)
        assert cpu_point.sources == (Source.ESTIMATED,)
        assert sorted(sensor.device for sensor in kept.history.sensors()) == ["GPU-1", "cpu:0"]
        assert kept.history.energy(BEGIN, BEGIN + timedelta(hours=1), host="another") == []


def test_what_cannot_be_asked(url: str) -> None:
    with keeping(url) as kept:
        kept.writer.accept(pieces(0, 20))
        written(kept, 19)
        ask, hour = kept.history.energy, timedelta(hours=1)
        with pytest.raises(ConfigError, match="must name its time zone"):
            ask(datetime(2026, 1, 1), BEGIN)  # noqa: DTZ001
        for start, end, resolution in ((BEGIN, BEGIN - hour, 1), (BEGIN, BEGIN + hour, 0), (BEGIN, BEGIN, 10**9)):
            with pytest.raises(ConfigError, match="is not allowed"):
                ask(start, end, resolution=resolution)
        with pytest.raises(ConfigError, match="more than 5 points"):
            ask(BEGIN, BEGIN + hour, resolution=1, limit=5)
        with pytest.raises(NotFoundError, match="No energy of GPU-1"):
            kept.history.pieces("no run", "GPU-1", "gpu")


def test_a_restart_within_a_second_makes_no_row_worse(url: str) -> None:
    with keeping(url) as kept:
        kept.writer.accept(pieces(0, 2.9))
    with keeping(url) as kept:  # killed, begun anew: of second 2 only the end is seen
        kept.writer.accept(pieces(2.9, 5))
    with keeping(url) as kept:  # and the same again, as a replayed queue would
        kept.writer.accept(pieces(2.9, 5))
        kept.writer.accept(pieces(6, 7))
    with keeping(url) as kept:
        whole = {at: amount for at, amount, _ in kept.stored(1)}
        assert whole[1] == nanojoules(pieces(1, 2))
        assert whole[2] == nanojoules(pieces(2, 2.9))
        assert whole[4] == nanojoules(pieces(4, 5))
        assert len(whole) == 6
        assert [amount for _, amount, _ in kept.stored(60)] == [sum(whole.values())]


WRITE_UNTIL_KILLED = """
import sys, time
from datetime import UTC, datetime, timedelta
from energyopt.core.clock import FakeClock
from energyopt.core.results import Scope, Source
from energyopt.store.database import open_engine
from energyopt.store.energy_writer import SqlEnergyWriter
from telemetry.ports import EnergyChunk, SensorId
engine, name = open_engine(sys.argv[1])
begin = datetime(2026, 1, 1, tzinfo=UTC)
writer = SqlEnergyWriter(engine, FakeClock(date=begin), name, "host-1")
sensors = [SensorId(f"GPU-{number}", Scope.GPU) for number in range(8)]
for second in range(int(sys.argv[2]), 10**6):
    at = begin + timedelta(seconds=second)
    for part in range(2):
        date = at + timedelta(seconds=part / 2)
        writer.accept([
            EnergyChunk(s, second + part / 2, second + (part + 1) / 2, date, 100.0 + second, 1.0, Source.COUNTER)
            for s in sensors
        ])
        time.sleep(0.01)
    while writer.stats.rows_written < 8 * (second - int(sys.argv[2])):
        time.sleep(0.001)
    print(second - 1, flush=True)
"""


def test_kill_9_loses_at_most_the_open_second(url: str) -> None:
    safe, start = -1, 0
    for lines in (10, 25):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE_UNTIL_KILLED, url, str(start)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(lines)]
        time.sleep(0.007)
        writer.send_signal(signal.SIGKILL)
        said += [line for line in writer.stdout if line.endswith("\n")]
        writer.wait(20)
        writer.stdout.close()
        safe = int(said[-1])
        with keeping(url) as kept:
            rows = kept.stored(1)
        assert [at for at, _, _ in rows] == list(range(len(rows)))
        assert len(rows) - 1 in (safe, safe + 1)
        assert all(amount == round(2 * (100 + at) * NANOJOULES) for at, amount, _ in rows)
        start = len(rows)
    assert safe > 30


def test_ten_times_the_design_load_loses_nothing_and_grows_nothing(url: str) -> None:
    """8 sensors at 10 Hz is the design; here 8 at 100 Hz, in a fifth of its time. The hour is in tests/bench."""
    sensors = [SensorId(f"GPU-{number}", Scope.GPU) for number in range(8)]
    with keeping(url) as kept:
        queued, memory = [], []
        tracemalloc.start()
        try:
            for second in range(8):
                for sensor in sensors:
                    kept.writer.accept(pieces(second, second + 1, rate=100, sensor=sensor))
                time.sleep(0.2)
                queued.append(kept.writer.stats.queued)
                memory.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        stats = kept.writer.stats
        assert (stats.lost, stats.rows_lost, stats.failure) == (0, 0, None)
        assert stats.accepted == 8 * 800
        assert max(queued[4:]) <= 2 * 800
        assert max(memory[5:]) < 1.5 * max(memory[2:5]) + 200_000
    with keeping(url) as kept:
        assert kept.count("rollups") == 8 * 8 + 8
        assert sum(amount for _, amount, _ in kept.stored(1)) == nanojoules(pieces(0, 8, rate=100))


def test_a_full_queue_refuses_and_counts(tmp_path: Path) -> None:
    with keeping(str(tmp_path / "e.db"), max_queue=100) as kept:
        with pytest.raises(StoreError, match="101 pieces of energy were lost"):
            kept.writer.accept(pieces(0, 10.1))
        kept.writer.accept(pieces(0, 5))
        stats = kept.writer.stats
        assert (stats.accepted, stats.lost) == (50, 101)
    with pytest.raises(StoreError, match="is closed"):
        kept.writer.accept(pieces(5, 6))


def test_rows_wait_for_a_database_that_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(energy_writer, "RETRY", (0.01, 0.02))
    broken = [True]

    def refuse(connection: Connection, rows: Sequence[Row]) -> None:
        if broken[0]:
            raise OperationalError("INSERT", {}, Exception("the disk is full"))
        write_seconds(connection, rows)

    monkeypatch.setattr(energy_writer, "write_seconds", refuse)
    with keeping(str(tmp_path / "e.db")) as kept:
        kept.writer.accept(pieces(0, 30))
        end = time.monotonic() + 10
        while not (stats := kept.writer.stats).failure:
            assert time.monotonic() < end
            time.sleep(0.005)
        assert "the disk is full" in str(stats.failure)
        assert stats.rows_waiting == 29
        broken[0] = False
        written(kept, 29)
        assert kept.writer.stats.failure is None
    assert "energy waits for the database" in caplog.text


def test_rows_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy_writer, "MAX_ROWS", 10)
    with keeping(str(tmp_path / "e.db")) as kept:
        kept.writer.accept(pieces(0, 31))
        end = time.monotonic() + 10
        while kept.writer.stats.rows_written < 10:
            assert time.monotonic() < end
            time.sleep(0.005)
        assert kept.writer.stats.rows_lost == 20
        assert [at for at, _, _ in kept.stored(1)] == list(range(20, 30))


def test_old_rows_go_by_resolution(url: str) -> None:
    clock = FakeClock(date=BEGIN)
    keep = Retention(seconds=120, minutes=360, chunks=60)
    with keeping(url, clock, retention=keep) as kept:
        for minute in range(8):
            clock.advance(60)
            kept.writer.accept([piece(60 * minute + second, 1.0) for second in range(60)])
            written(kept, 60 * (minute + 1) - 1)
        assert min(at for at, _, _ in kept.stored(1)) >= 60 * 4
    with keeping(url) as kept:
        minutes = [at for at, _, _ in kept.stored(60)]
        assert 60 <= minutes[0] <= 180
        assert minutes[-1] == 7 * 60


def test_minutes_nobody_rolled_up_are_made_after_a_restart(url: str) -> None:
    with keeping(url) as kept:
        kept.writer.accept([piece(float(second), 1.0) for second in range(400)])
    with keeping(url) as kept:
        with kept.writer._engine.begin() as connection:
            connection.execute(
                text("DELETE FROM energyopt_rollups WHERE resolution = 60 AND at >= :at"), {"at": 1_767_225_780}
            )
        assert [at for at, _, _ in kept.stored(60)] == [0, 60, 120]
        kept.writer.accept([piece(float(second), 1.0) for second in range(3600, 3700)])
    with keeping(url) as kept:
        assert [at for at, _, _ in kept.stored(60)] == [0, 60, 120, 180, 240, 300, 360, 3600, 3660]


class TestRuns:
    def test_every_piece_of_a_window_is_kept_exactly(self, url: str) -> None:
        clock = FakeClock(date=BEGIN)
        with keeping(url, clock) as kept:
            kept.writer.accept(pieces(0, 5))
            clock.advance(5)
            kept.writer.begin_run("study/3")
            kept.writer.accept(pieces(5, 140))
            clock.advance(140)
            kept.writer.end_run("study/3")
            kept.writer.accept(pieces(140, 150))
        with keeping(url) as kept:
            found = kept.history.pieces("study/3", "GPU-1", "gpu")
            inside = pieces(5, 145)
            assert [(one.at, round(one.joules * NANOJOULES)) for one in found] == [
                (part.date, round(part.joules * NANOJOULES)) for part in inside
            ]
            assert all(one.seconds == pytest.approx(0.1) for one in found)
            assert {one.source for one in found} == {Source.COUNTER}
            assert kept.count("chunks") >= 1

    def test_windows_are_refused_by_name(self, tmp_path: Path) -> None:
        with keeping(str(tmp_path / "e.db")) as kept:
            kept.writer.begin_run("a")
            with pytest.raises(StoreError, match="begun already"):
                kept.writer.begin_run("a")
            kept.writer.end_run("a")
            for run in ("a", "b"):
                with pytest.raises(StoreError, match="not being recorded"):
                    kept.writer.end_run(run)
            for number in range(15):
                kept.writer.begin_run(f"run {number}")
            with pytest.raises(StoreError, match="one too many: 16"):
                kept.writer.begin_run("more")


class TestCodec:
    @settings(max_examples=30)
    @given(
        st.lists(
            st.builds(
                Packed,
                st.integers(0, 2**52),
                st.integers(0, 10**7),
                st.integers(0, 2**50),
                st.sampled_from([1, 2, 4, 8]),
            ),
            max_size=50,
        )
    )
    def test_round_trip(self, parts: list[Packed]) -> None:
        assert decode_chunk(encode_chunk(parts), len(parts)) == parts

    def test_is_small(self) -> None:
        parts = [
            Packed(1_767_225_600_000_000 + 100_000 * n, 100_000, 30 * 10**9 + n * 7919 % 10**8, 1) for n in range(600)
        ]
        assert len(encode_chunk(parts)) < 8 * len(parts)

    @pytest.mark.parametrize("count", [-1, 0, 1, 3, 10**9])
    def test_a_damaged_chunk_is_refused(self, count: int) -> None:
        whole = encode_chunk([Packed(1, 1, 1, 1)] * 2)
        with pytest.raises(StoreError, match=r"damaged|claims"):
            decode_chunk(whole, count)

    def test_a_blob_that_is_none_is_refused(self) -> None:
        whole = encode_chunk([Packed(n * 7919, n, n**3, 1) for n in range(50)])
        for blob in (whole[: len(whole) // 2], b"no deflate", b""):
            with pytest.raises(StoreError, match="damaged"):
                decode_chunk(blob, 50)
