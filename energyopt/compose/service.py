"""Builds the HTTP service: socket, engine, meter, metrics, application, under power limits that are put back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from pydantic import Field

from api.app import create_app
from api.serve import bind, serve
from api.services import Services
from energyopt import __version__
from energyopt.core.config import Config, EngineConfig, ParallelLayout, PowerConfig, TierConfig
from energyopt.core.errors import ConfigError, RequestError
from energyopt.core.footprint import FootprintConfig, describe_boundary
from energyopt.core.layouts import describe_layout
from energyopt.core.records import RequestRecord
from energyopt.core.slo import Slo
from energyopt.core.units import format_si
from engine.chat import ChatTemplate
from engine.kv.assembly import default_folder
from engine.kv_feed import KvEventFeed
from engine.parsers.formats import Formats, formats_of
from engine.ports import EngineStats
from telemetry.economy_metrics import EconomyCollector
from telemetry.exporter import Exporter
from telemetry.idle import idle_policy

from .footprint import footprint_rates
from .governed import PowerControl, fixed_power, governed_power
from .meters import MeterName, device_identities
from .power import capable_limits, power_controller, put_back_left
from .rig import RunningEngine, load_engine

Notify = Callable[[str], None]


class ServeRequest(Config):
    """What ``energyopt serve`` was asked. ``tenants`` maps keys to tenants, ``reservations`` tenants to shares."""

    engine: EngineConfig
    power: PowerConfig = PowerConfig()
    power_auto: bool = False
    slos: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = Field(None, min_length=1)
    tenants: Mapping[str, str] = Field(default_factory=dict)
    meter: MeterName = "auto"
    idle_energy: str = "separate"
    reservations: Mapping[str, float] = Field(default_factory=dict)
    footprint: FootprintConfig = FootprintConfig()


def run_service(request: ServeRequest, notify: Notify) -> None:
    """Serve until SIGINT or SIGTERM. The port is taken before the model is loaded, the limits before either runs.

    Raises ConfigError (port in use, absent device), ModelError, ControlError, SensorUnavailableError.
    """
    answer_formats(request.engine, None)  # a name that is no format is an error of the first second
    with bind(request.host, request.port) as listener:
        devices = device_identities(request.engine.device, request.engine.layout.devices)
        for line in put_back_left():
            notify(line)
        with _power(request, devices, notify) as control:
            notify(f"loading {request.engine.model} ...")
            service = _Service(request, control)
            try:
                host, port = listener.getsockname()[:2]
                for line in service.description():
                    notify(line)
                serve(
                    create_app(service.bundle()),
                    listener,
                    abort=service.engine.front.close,
                    on_ready=lambda: service.ready(f"http://{host}:{port}/v1", notify),
                    on_stop=service.kv_events.close,
                )
            finally:
                service.engine.close()


def _power(request: ServeRequest, devices: Sequence[str], notify: Notify) -> AbstractContextManager[PowerControl]:
    """What was asked of power: nothing, fixed limits, or a governor."""
    slos, leased = [Slo.parse(text) for text in request.slos], power_controller(devices)
    if request.power_auto and not slos:
        raise ConfigError("--power-cap auto needs at least one --slo, such as ttft:p90<500ms.")
    if request.power_auto:
        return governed_power(leased, capable_limits(devices), request.power, slos, notify)
    if slos:
        raise ConfigError("--slo is what --power-cap auto keeps; with a fixed cap or none nothing would heed it.")
    return fixed_power(leased, request.power, notify)


class NoChat:
    """Stands in for the template of a model that has none: completions work, chats are refused."""

    def __init__(self, model: str) -> None:
        self._model = model

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: object,
    ) -> str:
        raise RequestError(f"{self._model} has no chat template; /v1/completions serves it.", param="messages")


class _Service:
    """The running engine with its metrics page."""

    def __init__(self, request: ServeRequest, control: PowerControl) -> None:
        self._control = control
        idle = idle_policy(request.idle_energy, request.reservations)
        ready = load_engine(request.engine, request.meter, idle=idle, tenants=request.tenants.values())
        self._request = request
        self._rates = footprint_rates(
            request.footprint, [channel.curve.sensor.scope for channel in ready.meter.channels]
        )
        self._exporter = Exporter(
            ready.meter, ready.loaded.name, lambda: self.engine.front.stats(), rates=self._rates, clock=ready.clock
        )
        self._exporter.add(EconomyCollector(ready.loaded.name, ready.economy.counts))
        if control.collector is not None:
            self._exporter.add(control.collector)
        self._clock = ready.clock
        self.engine: RunningEngine = ready.start(control.on_step, self._on_request)

        front = self.engine.front
        self.kv_events = KvEventFeed(front.watch_cache, front.block_naming)

    def _on_request(self, record: RequestRecord) -> None:
        self._exporter.observe_request(record)
        self._control.on_request(record)

    def ready(self, address: str, notify: Notify) -> None:
        """The service takes requests."""
        self._control.start()
        notify(f"serving on {address} (stop with Ctrl-C)")

    def bundle(self) -> Services:
        """What the application is handed."""
        loaded, meter = self.engine.loaded, self.engine.meter
        return Services(
            engine=self._control.watch(self.engine.front, self._clock),
            tokenizer=loaded.tokenizer,
            chat=loaded.chat or NoChat(loaded.name),
            metrics=self._exporter,
            model_names=tuple(dict.fromkeys((loaded.name, self._request.engine.model))),
            version=__version__,
            energy=meter if meter.channels else None,
            api_key=self._request.api_key,
            tenants=self._request.tenants,
            created=int(time.time()),
            formats=answer_formats(self._request.engine, loaded.chat),
            kv_events=self.kv_events if self._request.engine.layout.dp == 1 else None,  # replicas: several caches
            hands_over=self._request.engine.kv_transfer is not None,
        )

    def description(self) -> list[str]:
        """The effective settings, for the log."""
        loaded, cache, config = self.engine.loaded, self.engine.front.cache, self._request.engine
        pool = format_si(cache.num_blocks * cache.bytes_per_block, "B")
        lines = [
            f"model {loaded.name} from {loaded.path}, {str(loaded.dtype).removeprefix('torch.')} on {loaded.device}, "
            f"context {loaded.max_model_len}",
            *describe_ranks(config.layout),
            f"KV pool {cache.num_blocks} blocks of {cache.block_tokens} tokens ({pool})",
            describe_prefix_cache(self.engine.front.stats()),
            *(describe_tier(tier, config) for tier in config.kv.tiers),
        ]
        lines += [f"energy: {reason}" for reason in self.engine.meter.reasons]
        if self._rates is not None:
            lines.append(f"carbon and cost cover {describe_boundary(self._rates.boundary, idle=True)}")
        return lines


def answer_formats(config: EngineConfig, chat: ChatTemplate | None) -> Formats:
    """How this model writes tool calls and reasoning. Raises ConfigError for a name that is no format."""
    template = None if chat is None else chat.source
    return formats_of(template, tools=config.tool_call_parser, reasoning=config.reasoning_parser)


def describe_ranks(layout: ParallelLayout) -> list[str]:
    """A line about the ranks, where there are several."""
    if layout.devices == 1:
        return []
    return [f"layout {describe_layout(layout)}: {layout.devices} ranks, one process each"]


def describe_tier(tier: TierConfig, config: EngineConfig) -> str:
    """One tier's size and place, and what it does when it is full or not worth asking."""
    kv, size = config.kv, format_si(tier.size(config.layout), "B")
    if tier.kind == "shared":
        return f"KV tier shared: {size} of this host lent to {tier.path}; loads {kv.tier_load}"
    if tier.kind == "disk":
        return f"KV tier disk: {size} in {tier.path or default_folder()}; loads {kv.tier_load}"
    return f"KV tier host: {size}, {kv.tier_eviction.upper()}; loads {kv.tier_load}"


def describe_prefix_cache(stats: EngineStats) -> str:
    """The settings that took effect, and the shortest prompt that can profit from them."""
    if stats.min_hit_tokens is None:
        return "prefix cache off"
    kept = {None: "every state and window is kept", 0: "states and windows are kept at reachable boundaries"}
    interval = stats.retention_interval
    every = kept.get(interval, f"states and windows are also kept every {interval} tokens")
    return f"prefix cache: hits from {stats.min_hit_tokens} tokens on, in steps of as many; {every}"
