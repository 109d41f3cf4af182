"""Devices of the host as the service shows them: each sensor for itself, and what can be done with its device."""

from __future__ import annotations

from energyopt.compose.host_devices import HostDevices
from energyopt.core.units import Seconds
from telemetry.page import Page, parse_page


class TwoLooks:
    """Satisfies ``Pages``: a package and its memory, whose counters have grown by the second look."""

    name, notes = "two looks", ()

    def __init__(self) -> None:
        self.looks = 0

    def read(self) -> Page:
        self.looks += 1
        grown = self.looks - 1
        lines = [
            "# TYPE energyopt_cpu_energy_joules_total counter",
            *(
                f'energyopt_cpu_energy_joules_total{{package="0",domain="{domain}",source="counter"}} {joules * grown}'
                for domain, joules in (("cpu_package", 500.0), ("dram", 30.0))
            ),
            "# EOF",
        ]
        return parse_page("\n".join(lines), Seconds(10.0 * self.looks))

    def close(self) -> None:
        """Nothing is held."""


def test_memory_does_not_hide_the_package_of_the_same_name() -> None:
    devices = HostDevices(TwoLooks)
    devices.look()
    found = {entry["scope"]: entry for entry in devices.look()}
    assert {scope: entry["energy"] for scope, entry in found.items()} == {"cpu_package": 500.0, "dram": 30.0}
    assert {scope: entry["power"] for scope, entry in found.items()} == {"cpu_package": 50.0, "dram": 3.0}
    assert {entry["device"] for entry in found.values()} == {"cpu:0"}
    devices.close()


def test_what_can_be_done_with_a_device_stands_with_each_of_its_sensors() -> None:
    class Capable(HostDevices):
        def _states(self) -> dict[str, dict[str, object]]:  # type: ignore[override]
            return {
                "cpu:0": {"device": "cpu:0", "can_be_capped": True},
                "gpu": {"device": "gpu", "can_be_capped": False},
            }

    first, second, third = Capable(TwoLooks).look()
    assert (first["scope"], second["scope"]) == ("cpu_package", "dram")
    assert first["can_be_capped"]
    assert second["can_be_capped"]
    assert third == {"device": "gpu", "can_be_capped": False}
