"""Joules of two pools: by device, by the server's account, and unknown where nobody can tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.results import EnergyReading, Scope, Source
from energyopt.core.units import Joules, Seconds
from tuner.replay.counters import parse_counts
from tuner.replay.pools import PoolEnergy, PoolJoules, phase_energy, pool_energy, unread


def reading(device: str, joules: float) -> EnergyReading:
    return EnergyReading(
        device=device,
        joules=Joules(joules),
        error=Joules(1.0),
        scope=Scope.GPU,
        source=Source.COUNTER,
        window=Seconds(10.0),
    )


READINGS = [reading("a", 100.0), reading("b", 30.0), reading("c", 20.0)]
ACCOUNT = {("prefill", "prefill"): 6.0, ("prefill", "idle"): 1.0, ("decode", "prefill"): 0.5, ("decode", "decode"): 4.0}


def test_named_devices_are_the_prefill_pool_and_the_others_decode() -> None:
    found = pool_energy(READINGS, ("a", "c", "a"), ACCOUNT)
    assert found is not None
    assert found.prefill == PoolJoules(joules=120.0, error=2.0, sources=(Source.COUNTER,))
    assert found.decode == PoolJoules(joules=30.0, error=1.0, sources=(Source.COUNTER,))
    assert found.basis == "devices"


def test_a_device_without_a_reading_makes_the_pools_unknown() -> None:
    assert pool_energy(READINGS, ("a", "d"), ACCOUNT) is None
    assert pool_energy((), ("a",), ACCOUNT) is None


def test_what_names_no_two_pools_is_said_with_what_was_measured() -> None:
    assert unread(READINGS, ("a", "GPU-x")) == "pools: GPU-x has no reading; measured were a, b, c"
    assert "none is left for decode" in (unread(READINGS, ("a", "b", "c")) or "")
    assert pool_energy(READINGS, ("a", "b", "c"), ACCOUNT) is None
    assert unread(READINGS, ("a",)) is unread(READINGS, ()) is None


def test_a_package_stands_for_all_of_its_parts() -> None:
    found = pool_energy([reading("cpu:0:package", 5.0), reading("cpu:0:dram", 1.0), *READINGS], ("cpu:0",), None)
    assert found is not None
    assert (found.prefill.joules, found.decode.joules) == (6.0, 150.0)


def test_pools_of_a_run_stored_without_errors_are_read() -> None:
    assert PoolEnergy.model_validate_json('{"prefill": 2.5, "decode": 1.5, "basis": "account"}') == PoolEnergy(
        prefill=PoolJoules(joules=2.5), decode=PoolJoules(joules=1.5), basis="account"
    )


def test_the_account_gives_each_pool_its_idle_time_and_its_strays() -> None:
    found = pool_energy(READINGS, (), ACCOUNT)
    assert found is not None
    assert (found.prefill.joules, found.decode.joules, found.basis) == (7.0, 4.5, "account")
    assert (found.prefill.error, found.prefill.sources) == (None, ()), "an account tells neither"


@pytest.mark.parametrize("account", [None, {}, {("", "prefill"): 3.0}, {("prefill", "prefill"): 3.0}])
def test_without_two_roles_there_are_no_pools(account: dict[tuple[str, str], float] | None) -> None:
    assert pool_energy(READINGS, (), account) is None


@given(st.dictionaries(st.tuples(st.sampled_from(["prefill", "decode"]), st.text(max_size=3)), st.floats(0, 1e6)))
def test_pools_and_phases_share_out_all_of_the_account(account: dict[tuple[str, str], float]) -> None:
    whole = sum(account.values())
    phases, pools = phase_energy(account), pool_energy((), (), account)
    assert (phases is None) == (not account)
    if phases is not None:
        assert sum(phases.values()) == pytest.approx(whole)
    if pools is not None:
        assert pools.prefill.joules + pools.decode.joules == pytest.approx(whole)


def test_a_page_tells_roles_and_phases_over_all_engines_and_tenants() -> None:
    name = "energyopt_attributed_energy_joules_total"
    page = f"""# TYPE {name} counter
{name}{{role="prefill",worker="0",phase="prefill",tenant="a"}} 2.5
{name}{{role="prefill",worker="1",phase="prefill",tenant="b"}} 1.5
{name}{{role="decode",worker="2",phase="decode",tenant="a"}} 3.0
"""
    assert parse_counts(page).joules == {("prefill", "prefill"): 4.0, ("decode", "decode"): 3.0}
    assert parse_counts(f'# TYPE {name} counter\n{name}{{phase="idle"}} 1.0\n').joules == {("", "idle"): 1.0}
