"""Where the watch screen looks: at a /metrics page over HTTP, or at this machine's own sensors."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import httpx
from prometheus_client import CollectorRegistry, generate_latest

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.errors import ConfigError, SensorError
from telemetry.meter import Meter
from telemetry.page import Page, parse_page
from telemetry.sensor_metrics import SensorCollector

from .host_meter import await_sensors, host_meter

TIMEOUT = 5.0
MAX_BYTES = 32 << 20


class Pages(Protocol):
    """Gives the newest page whenever asked; ``read`` may block and raises SensorError."""

    @property
    def name(self) -> str:
        """What is watched, in words."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is measured and what not."""
        ...

    def read(self) -> Page: ...

    def close(self) -> None: ...


class RemotePages:
    """The page at a URL. Raises ConfigError for an address that is none."""

    def __init__(self, url: str, clock: Clock | None = None, transport: httpx.BaseTransport | None = None) -> None:
        self._url = metrics_url(url)
        self._clock = clock or MonotonicClock()
        self._http = httpx.Client(timeout=TIMEOUT, transport=transport, headers={"accept": "text/plain"})
        self.name = str(self._url)
        self.notes: tuple[str, ...] = ()

    def read(self) -> Page:
        """Fetch it, at most MAX_BYTES."""
        try:
            with self._http.stream("GET", self._url) as reply:
                if reply.status_code != httpx.codes.OK:
                    raise SensorError(f"{self.name} answered {reply.status_code}.")
                body = bytearray()
                for part in reply.iter_bytes():
                    body += part
                    if len(body) > MAX_BYTES:
                        raise SensorError(f"{self.name} is longer than {MAX_BYTES >> 20} MiB.")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SensorError(f"{self.name} does not answer: {error or type(error).__name__}.") from error
        return parse_page(body.decode("utf-8", "replace"), self._clock.now())

    def close(self) -> None:
        self._http.close()


class LocalPages:
    """This machine's sensors, sampled here. Nobody else is asked, and nothing is served."""

    def __init__(self, kind: str = "auto", open_meter: Callable[[str, Clock], Meter] = host_meter) -> None:
        self._clock = MonotonicClock()
        self._meter = open_meter(kind, self._clock)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(SensorCollector(self._meter.sampler))
        self._meter.start()
        await_sensors(self._meter, self._clock)
        self.name = "this machine"

    @property
    def notes(self) -> tuple[str, ...]:
        return self._meter.reasons

    def read(self) -> Page:
        return parse_page(generate_latest(self._registry).decode(), self._clock.now())

    def close(self) -> None:
        self._meter.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def metrics_url(given: str) -> httpx.URL:
    """``host:port`` or a URL, with /metrics where no path is named. Raises ConfigError."""
    text = given if "://" in given else f"http://{given}"
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{given!r} is no address: {error}.") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{given!r} is no address: expected HOST:PORT or http://HOST:PORT/metrics.")
    return url.copy_with(path="/metrics") if url.path in ("", "/") else url
