"""What a router is told: its backends, its policy and its limits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from api.middleware import BODY_SECONDS
from energyopt.core.config import Config
from energyopt.core.units import Seconds
from engine.routing.choose import PolicyName
from engine.routing.cost import TIER_CREDIT

_NAME = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,99}")

_ENDPOINT = r"^(tcp://[A-Za-z0-9.:_\[\]-]{1,253}:[0-9]{1,5}|ipc:///[!-~]{1,100})$"


class BackendConfig(Config):
    """One engine. ``url`` ends before ``/v1``; ``name`` is by default its host and port.

    ``api_key`` is sent to it instead of what the client sent. ``max_concurrency`` requests at most are there at once.
    ``speed`` is relative to the other backends. ``kv_events_endpoint`` is where a vLLM server publishes its cache's
    events (tcp://host:5557), ``kv_replay_endpoint`` where it repeats them: both as in its ``--kv-events-config``, with
    a host that is reached from here. ``ca_file`` holds the authorities to believe (default: the system's);
    ``verify`` False believes any certificate.
    """

    url: str
    name: str = ""
    api_key: str | None = Field(None, min_length=1, repr=False)
    max_concurrency: int = Field(256, ge=1)
    speed: float = Field(1.0, gt=0)
    joules_per_token: float | None = Field(None, ge=0)
    kv_events_endpoint: str | None = Field(None, pattern=_ENDPOINT)
    kv_replay_endpoint: str | None = Field(None, pattern=_ENDPOINT)
    ca_file: str | None = None
    verify: bool = True

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        try:
            port_allowed = parts.port != 0
        except ValueError:
            port_allowed = False
        if parts.scheme not in ("http", "https") or not parts.hostname or not port_allowed:
            raise ValueError("expected an address such as http://host:8000")
        if parts.username is not None or parts.query or parts.fragment or not url.isascii():
            raise ValueError("expected scheme, host, port and path alone, such as https://host:8000/base")
        return url.rstrip("/").removesuffix("/v1").rstrip("/")

    @field_validator("kv_events_endpoint", "kv_replay_endpoint")
    @classmethod
    def _has_one_port(cls, endpoint: str | None) -> str | None:
        """ZeroMQ tells nobody of an address that can never be reached."""
        if endpoint is not None and endpoint.startswith("tcp:"):
            try:
                allowed = urlsplit(endpoint).port != 0
            except ValueError:
                allowed = False
            if not allowed:
                raise ValueError("expected tcp://HOST:PORT with a port up to 65535, IPv6 as [::1]")
        return endpoint

    @model_validator(mode="after")
    def _repeats_what_it_publishes(self) -> BackendConfig:
        if self.kv_replay_endpoint is not None and self.kv_events_endpoint is None:
            raise ValueError("kv_replay_endpoint needs kv_events_endpoint, whose batches it repeats")
        return self

    @model_validator(mode="after")
    def _has_a_name(self) -> BackendConfig:
        if not self.name:
            object.__setattr__(self, "name", urlsplit(self.url).netloc)
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name[:100]!r} is not allowed: expected up to 100 of A-Z a-z 0-9 . _ : -")
        return self


class RouterConfig(Config):
    """All of a router's settings; the file of ``energyopt router --config`` has these keys.

    ``decode_weight`` and ``recent_weight`` are prompt tokens per token of that load, ``joules_weight`` prompt tokens
    per joule; ``tier_credit`` is the share of a cached token's computing that is saved when it comes from that tier.
    ``cache_tokens`` is about what a backend's cache holds, for those that send no events.
    ``retries`` are attempts at other backends, before the first byte of an answer. ``eject_after`` failures in a row
    take a backend out for ``eject_seconds``, twice as long each time. ``max_queue`` requests wait for a place,
    each ``queue_seconds`` at most. A client may take ``head_seconds`` from its connection, or the first byte of a
    further request, to the end of a request's head, and ``body_seconds`` for its body.
    """

    backends: tuple[BackendConfig, ...] = Field(min_length=1, max_length=256)
    policy: PolicyName = "prefix"
    seed: int = Field(0, ge=-(2**63), lt=2**63)
    decode_weight: float = Field(0.1, ge=0)
    recent_weight: float = Field(0.1, ge=0)
    joules_weight: float = Field(0.0, ge=0)
    tier_credit: dict[str, float] = Field(default_factory=lambda: dict(TIER_CREDIT))
    cache_tokens: int = Field(4_000_000, ge=64)
    api_key: str | None = Field(None, min_length=1, repr=False)
    retries: int = Field(2, ge=0, le=16)
    eject_after: int = Field(3, ge=1)
    eject_seconds: Seconds = Field(Seconds(5.0), gt=0)
    health_seconds: Seconds = Field(Seconds(5.0), ge=0.05)
    connect_seconds: Seconds = Field(Seconds(5.0), gt=0)
    silence_seconds: Seconds = Field(Seconds(600.0), gt=0)
    max_queue: int = Field(1024, ge=0)
    queue_seconds: Seconds = Field(Seconds(30.0), ge=0)
    grace_seconds: Seconds = Field(Seconds(30.0), ge=0)
    head_seconds: Seconds = Field(Seconds(60.0), gt=0)
    body_seconds: Seconds = Field(BODY_SECONDS, gt=0)
    max_body_bytes: int = Field(32 * 2**20, ge=1)
    max_header_bytes: int = Field(64 * 2**10, ge=1024)
    kv_events: bool = True

    @model_validator(mode="after")
    def _names_differ(self) -> RouterConfig:
        twice = _repeated([backend.name for backend in self.backends])
        if twice is not None:
            raise ValueError(f"backends holds {twice} twice: each needs a name of its own")
        return self


def _repeated(names: Sequence[str]) -> str | None:
    return next((name for at, name in enumerate(names) if name in names[:at]), None)
