"""What clients and the power helper say to each other: one JSON document a line, in both directions.

Every line is hostile until it parses: it is bounded before it is read, and each field has a type, a range and a most.
A request gets exactly one reply: ``{"ok": true, ...}`` or ``{"ok": false, "error": "a sentence for the user"}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from energyopt.core.config import Config, PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Seconds, Watts

from .journal import DEVICE

MAX_LINE = 8192
"""Bytes of a request; 64 devices by UUID take half of it."""
MAX_REPLY = 262_144
MOST_DEVICES = 64
LONGEST = Seconds(30 * 86_400.0)

Device = Annotated[str, Field(pattern=rf"^{DEVICE.pattern}$")]
Devices = Annotated[tuple[Device, ...], Field(min_length=1, max_length=MOST_DEVICES)]
LeaseId = Annotated[str, Field(pattern=r"^[0-9a-f]{1,32}$")]
Lifetime = Annotated[Seconds, Field(gt=0, le=LONGEST, allow_inf_nan=False)]


class _Limits(Config):
    cap: Annotated[Watts, Field(gt=0, le=1e6)] | None = None
    sm_clock: Annotated[Hertz, Field(gt=0, le=1e11)] | None = None

    @property
    def power(self) -> PowerConfig:
        return PowerConfig(cap=self.cap, sm_clock=self.sm_clock)


class Acquire(_Limits):
    """Take devices under limits. ``lifetime`` runs from now and from each renewal.

    A ``kept`` lease outlives its connection and ends at its deadline; any other ends with the connection too.
    """

    op: Literal["acquire"] = "acquire"
    devices: Devices
    lifetime: Lifetime
    kept: bool = False


class Adjust(_Limits):
    """Other limits on the devices of a lease."""

    op: Literal["adjust"] = "adjust"
    lease: LeaseId


class Renew(Config):
    op: Literal["renew"] = "renew"
    lease: LeaseId


class Release(Config):
    op: Literal["release"] = "release"
    lease: LeaseId


class Show(Config):
    """What devices stand at, whether they can be capped, and every lease."""

    op: Literal["show"] = "show"
    devices: Annotated[tuple[Device, ...], Field(max_length=MOST_DEVICES)] = ()


class Clear(Config):
    """End the caller's own leases on devices (root: anyone's)."""

    op: Literal["clear"] = "clear"
    devices: Devices


Request = Acquire | Adjust | Renew | Release | Show | Clear
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="op")])


def parse_request(line: bytes) -> Request:
    """A request from one line. Raises ControlError naming what is wrong with it."""
    if len(line) > MAX_LINE:
        raise ControlError(f"A request of {len(line)} bytes is too long: at most {MAX_LINE} are read.")
    try:
        return _REQUEST.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "request"
        raise ControlError(f"This is not a request of the power helper: {where}: {first['msg']}.") from error


def encode(message: Config | Mapping[str, object]) -> bytes:
    """One line, its end included."""
    if isinstance(message, Config):
        return message.model_dump_json().encode() + b"\n"
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def failure(error: ControlError) -> Mapping[str, object]:
    return {"ok": False, "error": str(error)}
