"""Limits of the GPUs of this machine, read and not touched."""

from __future__ import annotations

import pytest

from energyopt.core.errors import SensorUnavailableError
from telemetry.control.nvml_limits import NvmlLimits
from telemetry.nvml import list_gpus


@pytest.mark.gpu
def test_limits_of_real_gpus_are_in_order_and_their_driver_lives_on() -> None:
    try:
        gpus = list_gpus()
    except SensorUnavailableError as error:
        pytest.skip(str(error))
    backend = NvmlLimits()
    for gpu in gpus:
        limits, life = backend.limits(gpu.uuid), backend.life(gpu.uuid)
        print(f"{gpu.name}: {limits}, {life}, {backend.forbidden(gpu.uuid)}")  # noqa: T201
        assert 0 < limits.low <= limits.requested <= limits.high
        assert limits.enforced <= limits.requested
        assert not life.ended_before(backend.life(gpu.uuid))
