"""Everything the HTTP service needs, handed over in one frozen bundle.

The protocols here are what ``api`` asks of other rooms; they satisfy them by shape. The service itself builds none of
these objects and knows none of their classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from energyopt.core.errors import ConfigError
from engine.kv_feed import KvEventFeed
from engine.parsers.formats import Formats
from engine.ports import ServingEngine, Tokenizer
from telemetry.attribution_report import AttributionReport


class ChatRenderer(Protocol):
    """Turns a conversation into the text the model was trained on. Thread-safe.

    Messages are mappings as the client sent them, unknown roles and fields included. Raises RequestError when the
    template refuses the conversation.
    """

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: object,
    ) -> str: ...


class RequestEnergy(Protocol):
    """Joules of one request: ``error`` is the half-width of their interval, ``label`` names the sources ("a+b")."""

    @property
    def joules(self) -> float: ...

    @property
    def error(self) -> float: ...

    @property
    def label(self) -> str: ...


class EnergyLedger(Protocol):
    """Answers for the energy of finished requests. Thread-safe.

    ``note`` says whose a request is, before it is submitted; it is quick. ``attribution`` is the whole account, or
    one tenant's.

    ``request_energy`` may block for a sensor poll, so it is called off the event loop. None: not measured.
    Raises TelemetryError when a sensor fails.
    """

    def note(self, request_id: str, *, tenant: str | None = None, session: str | None = None) -> None: ...

    def request_energy(self, request_id: str) -> RequestEnergy | None: ...

    def attribution(self, tenant: str | None = None) -> AttributionReport: ...


class MetricsPage(Protocol):
    """The Prometheus page: body and content type for an ``Accept`` header. Thread-safe; answers from cached samples."""

    def render(self, accept: str) -> tuple[bytes, str]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What one HTTP request may ask for. ``max_choices`` bounds prompts times ``n``."""

    max_body_bytes: int = 32 * 2**20
    max_choices: int = 128
    max_stop_strings: int = 4


@dataclass(frozen=True, slots=True)
class Services:
    """The bundle. ``model_names`` holds the served name first, then its aliases; ``energy`` is None without a meter.

    ``created`` is the Unix time reported for the model, ``formats`` how it writes tool calls and reasoning.
    ``hands_over``: the engine takes ``kv_transfer_params``. ``kv_events`` tells routers what becomes of
    cached blocks. With ``api_key`` or ``tenants`` (tenant by key) every route under ``/v1`` asks for one of the keys.
    Raises ConfigError without a model name or with an empty key.
    """

    engine: ServingEngine
    tokenizer: Tokenizer
    chat: ChatRenderer
    metrics: MetricsPage
    model_names: tuple[str, ...]
    version: str
    energy: EnergyLedger | None = None
    api_key: str | None = None
    tenants: Mapping[str, str] = field(default_factory=dict)
    created: int = 0
    limits: Limits = field(default_factory=Limits)
    formats: Formats = field(default_factory=Formats)
    hands_over: bool = False
    kv_events: KvEventFeed | None = None

    def __post_init__(self) -> None:
        if not self.model_names or not all(self.model_names):
            raise ConfigError(
                f"model_names = {self.model_names!r} is not allowed: at least one non-empty name is needed."
            )
        if self.api_key == "" or "" in self.tenants:
            raise ConfigError("The API key is empty: give a non-empty key, or none to serve without one.")

    @property
    def keys(self) -> Mapping[str, str | None]:
        """Whose each key is; the one of ``api_key`` names no tenant."""
        return self.tenants if self.api_key is None else {**self.tenants, self.api_key: None}

    @property
    def max_model_len(self) -> int:
        """Prompt plus output tokens one request may have."""
        return self.engine.max_model_len

    @property
    def room(self) -> int:
        """Tokens one request can have at all: the context, or the KV pool where that is smaller.

        The last token of an answer is never fed back, so it needs no place in the pool.
        """
        cache = self.engine.cache
        return min(self.max_model_len, cache.num_blocks * cache.block_tokens + 1)
