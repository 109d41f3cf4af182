"""The fitted constants of one GPU: few, each with a physical meaning, each scaled by the data sheet.

Efficiencies and floors are fractions of data-sheet values, so that constants of a measured GPU carry over to one
that is not; a carried-over set is a *prior* and is labelled so on every screen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from energyopt.core.config import Config, describe_validation
from energyopt.core.errors import ConfigError

from . import datafiles
from .hardware import Gpu, load_gpu


class TimeConstants(Config):
    """Seconds and fractions of peak.

    ``memory``/``compute``/``attention``/``link`` are achieved shares of the data sheet's rates; ``expert`` and
    ``expert_fp8`` are the shares of ``compute`` that grouped products over experts reach in 16 and in 8 bits. ``step``
    is paid once an iteration, ``sequence`` once a sequence in it, ``layer`` once a layer, ``collective`` once an
    all-reduce, ``moe_layer`` once a layer with experts. ``routing`` is how many passes over the routed tokens'
    activations a layer with experts makes, ``sampling`` the bytes that choosing one token moves per entry of the
    vocabulary (a top-k/top-p sampler sorts it). ``blend`` is the exponent of the smooth maximum of memory and compute
    time (1: one after the other; large: perfect overlap).
    """

    memory: float = Field(0.83, gt=0, le=1.2)
    compute: float = Field(0.7, gt=0, le=1.2)
    attention: float = Field(0.7, gt=0, le=1.2)
    link: float = Field(0.5, gt=0, le=1.2)
    expert: float = Field(0.75, gt=0, le=1.2)
    expert_fp8: float = Field(0.6, gt=0, le=1.2)
    step: float = Field(1.0e-3, ge=0)
    sequence: float = Field(0.0, ge=0)
    layer: float = Field(2.0e-5, ge=0)
    collective: float = Field(8e-6, ge=0)
    moe_layer: float = Field(4e-5, ge=0)
    routing: float = Field(7.0, ge=0)
    sampling: float = Field(700.0, ge=0)
    blend: float = Field(1.5, ge=1, le=8)


class PowerConstants(Config):
    """Watts as shares of the limit, joules per byte and per operation.

    ``busy`` is drawn while kernels are resident, over idle, as a share of the limit. ``byte`` and ``flop`` are
    board-level effective costs (J); ``fp8`` is an 8-bit operation's share of a 16-bit one. ``link_byte`` has no public
    measurement: prior.
    """

    busy: float = Field(0.2, ge=0, le=1)
    byte: float = Field(1.2e-10, ge=0)
    flop: float = Field(1.0e-12, ge=0)
    fp8: float = Field(0.6, gt=0)
    link_byte: float = Field(3.2e-11, ge=0)


class ClockConstants(Config):
    """How time and power follow the clock.

    Time: compute scales as 1/f; of memory time ``memory_share`` and of overheads ``host_share`` do. Voltage is
    ``v_min`` of its maximum up to ``knee`` (a share of the highest clock), then linear. ``on_die`` is the part of the
    byte cost that scales with the voltage squared. Where a cap binds, the mean draw settles at ``settle`` of it;
    ``sharpness`` is how sharply a fluctuating draw bends before the cap.
    """

    memory_share: float = Field(0.2, ge=0, le=1)
    host_share: float = Field(0.3, ge=0, le=1)
    v_min: float = Field(0.7, gt=0, le=1)
    knee: float = Field(0.7, gt=0, lt=1)
    on_die: float = Field(0.6, ge=0, le=1)
    settle: float = Field(0.985, gt=0, le=1)
    sharpness: float = Field(16.0, ge=2)


class Constants(Config):
    """All constants of one GPU, with where they come from. ``origin`` is ``fitted`` or ``prior``."""

    gpu: str
    origin: Literal["fitted", "prior"]
    provenance: str
    error: float = Field(0.3, ge=0, le=1)
    """Half-width of the interval of every joule, relative: the mean error on unseen model families, or a guess for a
    prior.
    """
    time: TimeConstants = TimeConstants()
    power: PowerConstants = PowerConstants()
    clock: ClockConstants = ClockConstants()
    workload: Mapping[str, float] = Field(default_factory=dict)
    """What the published tables do not state of their load: mean prompt lengths by task, and (``gpqa_context``) the
    mean context of the long task over that of its length histogram. Used only to read those tables.
    """


_DONOR = {"gb200": "b200", "b300": "b200", "gb300": "b200"}
"""Whose constants a GPU without its own takes over; every other one takes H100's."""
_DEFAULT_DONOR = "h100"


def parse_constants(document: Mapping[str, Any]) -> Constants:
    """Constants from the content of a file. Raises ConfigError."""
    try:
        return Constants.model_validate(document)
    except ValidationError as error:
        raise ConfigError(describe_validation(Constants, error)) from error


def load_constants(gpu: Gpu, *, moe: bool, path: str | None = None) -> Constants:
    """The constants of ``gpu`` for models with or without experts. Raises ConfigError, NotFoundError.

    They come from ``path``, from the project's files, or from a measured relative as a prior: the dimensionless shares
    as they are; the cost of a byte and of an operation in proportion to the board's watts per unit of peak, as it moves
    between the measured generations.
    """
    if path is not None:
        return parse_constants(datafiles.load("constants", path))
    suffix = "moe" if moe else "dense"
    shipped = datafiles.names("constants")
    for name in (f"{gpu.name}-{suffix}", gpu.name):
        if name in shipped:
            return parse_constants(datafiles.load("constants", name))
    donor_name = _DONOR.get(gpu.name, _DEFAULT_DONOR)
    donor = parse_constants(datafiles.load("constants", f"{donor_name}-{suffix}"))
    measured = load_gpu(donor_name)
    power = donor.power.model_copy(
        update={
            "flop": donor.power.flop * _cost(gpu, "flops_bf16") / _cost(measured, "flops_bf16"),
            "byte": donor.power.byte * _cost(gpu, "memory_bandwidth") / _cost(measured, "memory_bandwidth"),
        }
    )
    note = f"carried over from {donor_name} by data-sheet ratios; nothing was measured on {gpu.name}"
    return donor.model_copy(
        update={"gpu": gpu.name, "origin": "prior", "provenance": note, "power": power, "error": 0.4}
    )


def _cost(gpu: Gpu, rate: str) -> float:
    """Joules a unit of ``rate`` would cost were the board at its limit and nothing else drew power."""
    return gpu.value("tdp") / gpu.value(rate)
