"""Metrics of devices beside their energy, and of the process that collects them. Part of the catalogue."""

from __future__ import annotations

from typing import NamedTuple

from .metric import Metric, own

_GPU = "gpu_uuid"


class DeviceMetrics(NamedTuple):
    """What a GPU says about itself. Power beside the sensor's own is in ``SensorMetrics.power``, by scope and kind."""

    info: Metric = own(
        "gpu_info",
        "gauge",
        "1 for every GPU found; joins its UUID with names that may change.",
        *(_GPU, "gpu", "vendor", "model", "pci_bus_id", "driver"),
    )
    status_up: Metric = own("gpu_status_up", "gauge", "1 if the last look at the GPU's status succeeded.", _GPU)
    partitions: Metric = own(
        "gpu_partitions", "gauge", "MIG instances or compute partitions that share the GPU's sensors.", _GPU
    )
    limit: Metric = own(
        "gpu_power_limit_watts",
        "gauge",
        "Power limits by kind: requested, enforced (the lowest of all limiters), default, min, max.",
        *(_GPU, "kind"),
    )
    clock: Metric = own("gpu_clock_hertz", "gauge", "Clock now by domain: sm, memory.", _GPU, "domain")
    locked_clock: Metric = own(
        "gpu_locked_clock_hertz", "gauge", "Bounds a clock is locked to, where known.", _GPU, "domain", "bound"
    )
    throttled: Metric = own(
        "gpu_throttled", "gauge", "1 while the reason holds clocks below what was asked for.", _GPU, "reason"
    )
    throttle: Metric = own(
        "gpu_throttle_seconds_total", "counter", "Time clocks were held down, by reason.", _GPU, "reason"
    )
    temperature: Metric = own(
        "gpu_temperature_celsius", "gauge", "Temperature by sensor: gpu, hotspot, memory.", _GPU, "sensor"
    )
    utilization: Metric = own(
        "gpu_utilization_ratio", "gauge", "Share of time a unit was busy: compute, memory; 1 is all.", _GPU, "unit"
    )

    @property
    def all(self) -> tuple[Metric, ...]:
        return tuple(self)


class AgentMetrics(NamedTuple):
    """The collecting process itself."""

    collector_up: Metric = own(
        "collector_up",
        "gauge",
        "1 if a collector's driver library answers; 0 if it is there and fails.",
        "collector",
    )
    collector_restarts: Metric = own(
        "collector_restarts_total", "counter", "Times a collector's process was started again.", "collector"
    )
    chunks: Metric = own(
        "energy_chunks_total", "counter", "Pieces of settled energy handed on, by result: accepted, lost.", "result"
    )

    @property
    def all(self) -> tuple[Metric, ...]:
        return tuple(self)


DEVICE = DeviceMetrics()
AGENT = AgentMetrics()
