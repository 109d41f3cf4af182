"""One process a host that owns its collectors: it finds sensors, samples them and hands settled energy to a sink."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread

from prometheus_client import CollectorRegistry

from energyopt.core.clock import Clock
from energyopt.core.errors import StoreError
from energyopt.core.units import Seconds

from .agent_metrics import AgentCollector, ChunkCounts
from .chunker import Chunker
from .host import HostScan
from .ports import EnergySink
from .sampler import Sampler
from .sensor_metrics import SensorCollector

log = logging.getLogger(__name__)

PERIOD = Seconds(0.1)
"""10 Hz: a counter that ticks every 20 to 100 ms has changed, and a hole of a lost sample stays small."""
ROUND = 1.0
"""Seconds between hand-overs to the sink, whose pieces are of a second each: a process that is killed loses what it had
not handed over, this long and the second that was not over. With a database and eight sensors the agent takes 0.8% of
a core so, and 0.6% with five seconds."""
SCAN_EVERY = 30.0
"""Seconds between looks for sensors that were not there before."""
STOP_TIMEOUT = 5.0


class Agent:
    """Owns a sampler and its sources. ``registry`` renders what it knows.

    ``step`` does what is due of scanning and handing over, for a caller with its own loop; ``start`` runs it on a
    thread. ``notify`` is told once of every new sensor and every new reason. Without a sink, energy is only shown.
    """

    def __init__(
        self,
        scan: HostScan,
        clock: Clock,
        sink: EnergySink | None = None,
        *,
        period: Seconds = PERIOD,
        notify: Callable[[str], None] = log.info,
    ) -> None:
        self._scan = scan
        self._clock = clock
        self._sink = sink
        self._notify = notify
        self._told: set[str] = set()
        self._chunker = Chunker(clock)
        self._next_scan = float(clock.now())
        self._stop = Event()
        self._thread: Thread | None = None
        self.chunks = ChunkCounts()
        self.sampler = Sampler((), clock, period=period)
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(SensorCollector(self.sampler))
        self.registry.register(AgentCollector(scan.health, self.chunks))

    def start(self) -> None:
        """Find sensors, then sample and hand over until ``stop``."""
        self.look()
        self.sampler.start()
        self._thread = Thread(target=self._run, name="energyopt-agent", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End sampling, hand over what is settled, close sink and drivers. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)
            self._thread = None
        self.sampler.stop()
        self.hand_over(last=True)
        if self._sink is not None:
            self._sink.close()
            self._sink = None
        for channel in self.sampler.channels:
            channel.close()
        for device in self.sampler.devices:
            device.close()
        self._scan.close()

    def step(self) -> None:
        """Scan if it is time; hand over what has settled."""
        if self._clock.now() >= self._next_scan:
            self.look()
        self.hand_over()

    def look(self) -> None:
        """Take on the sensors that are new, and tell what is missing."""
        found = self._scan.scan()
        self.sampler.add(found.sources, found.statuses)
        for line in found.reasons:
            if line not in self._told:
                self._told.add(line)
                self._notify(line)
        self._next_scan = self._clock.now() + SCAN_EVERY

    def hand_over(self, *, last: bool = False) -> None:
        """Give the sink what has settled since the call before; what it refuses is counted as lost."""
        if self._sink is None:
            return
        chunks = self._chunker.cut([channel.curve for channel in self.sampler.channels], last=last)
        if not chunks:
            return
        try:
            self._sink.accept(chunks)
        except StoreError as error:
            self.chunks.lost += len(chunks)
            log.warning("%d pieces of energy were lost: %s", len(chunks), error)
        else:
            self.chunks.accepted += len(chunks)

    def _run(self) -> None:
        while not self._stop.wait(ROUND):
            try:
                self.step()
            except Exception:  # the thread's border: sampling goes on, and the next round tries again
                log.exception("A round of the agent failed.")
