"""Configuration: frozen models, one canonical form, an unknown key is an error.

Flag names follow vLLM where vLLM has the knob (``max_num_seqs``, ``max_num_batched_tokens``, ``block_size`` ...);
the CLI and the study files build these models and nothing else. ``parse_config`` turns pydantic's report into one
sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from .errors import ConfigError
from .frozen import Config as Config
from .speculation import SpeculativeConfig as SpeculativeConfig
from .units import Bytes, Hertz, Seconds, Watts

DType = Literal["auto", "float32", "bfloat16", "float16"]
DeviceKind = Literal["auto", "cpu", "cuda"]
"""``cuda`` is also torch's name for ROCm devices."""

KernelsName = Literal["auto", "triton", "torch", "reference"]
"""Implementations of the operators: Triton's are for GPUs, torch's for all devices, the reference is the slow twin."""

Quantization = Literal["auto", "none", "int8", "int4"]
"""Of weights at load: ``auto`` keeps what the file holds packed where that is faster, ``none`` widens it."""

MAX_THREADS = 1024
"""More than any machine's cores; libraries that are asked for more than a process may have end it without a word."""


class ParallelLayout(Config):
    """How one engine is spread over devices. ``dcp`` splits the tp ranks and costs no device of its own."""

    tp: int = Field(1, ge=1)
    pp: int = Field(1, ge=1)
    ep: int = Field(1, ge=1)
    dcp: int = Field(1, ge=1)
    dp: int = Field(1, ge=1)

    @property
    def devices(self) -> int:
        """Devices that one engine of this layout occupies."""
        return self.tp * self.pp * self.dp


class TierConfig(Config):
    """One KV tier below the device pool; its size is per host or per rank of the engine, as the names say.

    ``path`` is the folder of a disk tier (None: the user's cache folder) or the address of a shared pool. A shared
    tier's size is what this host lends to the pool.
    """

    kind: Literal["host", "disk", "shared"]
    bytes_per_host: Bytes | None = Field(None, gt=0)
    bytes_per_rank: Bytes | None = Field(None, gt=0)
    path: str | None = None

    @model_validator(mode="after")
    def _has_one_size_and_its_place(self) -> TierConfig:
        if (self.bytes_per_host is None) == (self.bytes_per_rank is None):
            raise ValueError(f"the {self.kind} tier needs either bytes_per_host or bytes_per_rank")
        if self.kind == "shared" and not self.path:
            raise ValueError("the shared tier needs path, the address of the pool")
        if self.kind == "host" and self.path is not None:
            raise ValueError(f"the host tier has no path, so {self.path!r} has no use")
        return self

    def size(self, layout: ParallelLayout) -> Bytes:
        """Bytes on this host for one engine of that layout, which the host holds whole."""
        if self.bytes_per_host is not None:
            return self.bytes_per_host
        return Bytes((self.bytes_per_rank or 0) * layout.devices)


class KvConfig(Config):
    """The KV cache.

    ``memory_bytes`` is the size of the device pool; None lets the engine choose from the memory that is free.
    ``retention_interval`` is None (keep every block), 0 (reachable boundaries only) or a multiple of the block; it
    thins windows and states, never full attention. ``match_tokens`` is the prefix-match unit: hits may end inside a
    block at a multiple of it (None: at the end of blocks only).

    ``tiers`` are asked in their order. ``tier_admit_after`` is in how many requests a block must have been seen to be
    kept. ``tier_store``: save blocks when they are full, or when the device is about to evict them. ``tier_load``:
    load whatever is found, or only where that is faster, or costs fewer joules, than to compute.
    """

    block_tokens: int = Field(16, ge=1, le=1024)
    memory_bytes: Bytes | None = Field(None, gt=0)
    prefix_caching: bool = True
    retention_interval: int | None = Field(0, ge=0)
    match_tokens: int | None = Field(None, ge=1)
    tiers: tuple[TierConfig, ...] = ()
    tier_eviction: Literal["lru", "arc"] = "lru"
    tier_admit_after: int = Field(1, ge=1)
    tier_store: Literal["eager", "lazy"] = "eager"
    tier_load: Literal["always", "faster", "cheaper"] = "always"

    @model_validator(mode="after")
    def _tiers_fit_together(self) -> KvConfig:
        kinds = [tier.kind for tier in self.tiers]
        if self.tiers and not self.prefix_caching:
            raise ValueError("tiers keep cached prefixes, so they need prefix_caching")
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"of each kind of tier there is one at most, not {', '.join(kinds)}")
        if "host" in kinds[1:]:
            raise ValueError(f"the host tier comes first, not behind {kinds[0]}")
        return self

    @model_validator(mode="after")
    def _interval_is_whole_blocks(self) -> KvConfig:
        if self.retention_interval is not None and self.retention_interval % self.block_tokens:
            raise ValueError(
                f"retention_interval {self.retention_interval} is not a multiple of block_tokens {self.block_tokens}"
            )
        if self.match_tokens is not None and self.block_tokens % self.match_tokens:
            raise ValueError(f"match_tokens {self.match_tokens} does not divide block_tokens {self.block_tokens}")
        return self


class KvTransferConfig(Config):
    """How an engine hands prompts over to others and takes them, which makes it fit for a prefill or a decode pool.

    ``transport``: shared memory between processes of one host, TCP, memory of the peer that is read by NIXL, or a
    Mooncake pool at the address ``pool``.
    ``host`` and ``port`` (0: a free one) are where this engine lends its blocks by TCP, ``advertise`` how its peers
    reach it (None: as ``host``). ``peers`` are the hosts that it fetches from, whatever a request says. ``lease`` is
    how many seconds blocks wait without a sign of life from whoever wants them.
    """

    transport: Literal["shm", "tcp", "nixl", "mooncake"] = "shm"
    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65535)
    advertise: str | None = None
    peers: tuple[str, ...] = ("127.0.0.1", "::1", "localhost")
    lease: float = Field(30.0, ge=1.0, le=480.0)
    failure_policy: Literal["recompute", "fail"] = "recompute"
    pool: str | None = None
    pool_bytes: Bytes = Field(Bytes(1 << 30), gt=0)

    @model_validator(mode="after")
    def _pool_goes_with_its_transport(self) -> KvTransferConfig:
        if (self.transport == "mooncake") != (self.pool is not None):
            raise ValueError("transport mooncake needs pool, the address of the pool, and no other transport has one")
        return self


class EngineConfig(Config):
    """One engine instance.

    ``model`` is an alias, a GGUF file or a Hugging Face directory. ``threads`` is CPU threads for the model (None:
    every core this process may use). ``max_model_len`` None takes the model's own context. ``kernels`` selects the
    operator implementations by name; "auto" takes the fastest that this device has. ``enforce_eager`` launches every
    decode step anew instead of replaying a captured graph.
    After ``idle_sleep`` seconds without a request the engine gives its device memory back until the next one.
    ``tool_call_parser`` and ``reasoning_parser`` name the formats of the answers ("auto": what the chat template
    tells, "none": plain text).
    """

    model: str
    served_model_name: str | None = None
    dtype: DType = "auto"
    device: DeviceKind = "auto"
    seed: int = 0
    threads: int | None = Field(None, ge=1, le=MAX_THREADS)
    kernels: KernelsName = "auto"
    quantization: Quantization = "auto"
    enforce_eager: bool = False
    max_model_len: int | None = Field(None, ge=1)
    max_num_seqs: int = Field(64, ge=1)
    max_num_batched_tokens: int = Field(2048, ge=1)
    max_num_queued_reqs: int = Field(1024, ge=1)
    speculative_config: SpeculativeConfig | None = None
    idle_sleep: Seconds | None = Field(None, gt=0)
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    kv: KvConfig = KvConfig()
    layout: ParallelLayout = ParallelLayout()
    kv_transfer: KvTransferConfig | None = None

    @model_validator(mode="after")
    def _budget_covers_decodes(self) -> EngineConfig:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}: "
                "one decode step of a full batch would not fit"
            )
        return self


class PowerConfig(Config):
    """Limits on each device of a pool. None leaves the device as it was found."""

    cap: Watts | None = Field(None, gt=0)
    sm_clock: Hertz | None = Field(None, gt=0)


class PoolConfig(Config):
    """``replicas`` equal engines and the power limits of their devices."""

    engine: EngineConfig
    power: PowerConfig = PowerConfig()
    replicas: int = Field(1, ge=1)

    @property
    def devices(self) -> int:
        return self.replicas * self.engine.layout.devices


class Deployment(Config):
    """What a trial runs: one pool that does everything, or a prefill pool and a decode pool."""

    decode: PoolConfig
    prefill: PoolConfig | None = None

    @property
    def devices(self) -> int:
        """All devices, of both pools: the denominator of every per-device figure."""
        return self.decode.devices + (self.prefill.devices if self.prefill else 0)


C = TypeVar("C", bound=BaseModel)


def parse_config(kind: type[C], data: Mapping[str, object]) -> C:
    """Build ``kind`` from plain data. Raises ConfigError that names the key, the value and what is allowed."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError(describe_validation(kind, error)) from error


def describe_validation(kind: type[BaseModel], error: ValidationError) -> str:
    """The first problem of a validation report as one sentence."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        allowed = ", ".join(sorted(_fields_at(kind, first["loc"][:-1])))
        return f"Unknown key {where!r}: allowed are {allowed}."
    if first["type"] == "missing":
        return f"The key {where!r} is missing."
    message = first["msg"].removeprefix("Value error, ")
    if not where:  # a sentence about several keys; a key that begins it keeps its spelling
        return f"{message}." if "_" in message.split(" ", 1)[0] else f"{message[:1].upper()}{message[1:]}."
    return f"{where} = {_shown(first['input'])} is not allowed: {message[:1].lower()}{message[1:]}."


def _shown(value: object) -> str:
    """A value as a message repeats it: whole where it is short, its beginning where it came from a large body."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fields_at(kind: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The field names of the model that ``path`` leads to from ``kind``."""
    for part in path:
        field = kind.model_fields.get(str(part))
        inner = field.annotation if field else None
        candidates = [inner, *getattr(inner, "__args__", ())]
        models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if models:
            kind = models[0]
    return list(kind.model_fields)
