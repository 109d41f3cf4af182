"""Mooncake Store's address, its absence, and the death of its master; what it must do as a store is the contract's."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING

import pytest

from energyopt.core.errors import ConfigError
from engine.kv.block_store import Got, Put, StoreDownError
from engine.kv.checksum import checksum
from engine.kv.mooncake import MooncakeAddress, MooncakeStore

if TYPE_CHECKING:
    from tests.engine.kv.conftest import TierRig
    from tests.mooncake import MooncakePool

SIZE = 4096


def _block(text: str, size: int = SIZE) -> memoryview:
    return memoryview(text.encode().ljust(size, b"."))


def test_an_address_says_all_that_the_client_needs() -> None:
    assert MooncakeAddress.parse("mooncake://pool") == MooncakeAddress(
        "pool:50051", "http://pool:8080/metadata", "127.0.0.1"
    )
    full = "mooncake://10.0.0.1:5?metadata=http://m:1/metadata&host=10.0.0.2&protocol=rdma&devices=mlx5_0"
    assert MooncakeAddress.parse(full) == MooncakeAddress(
        "10.0.0.1:5", "http://m:1/metadata", "10.0.0.2", "rdma", "mlx5_0"
    )


@pytest.mark.parametrize("url", ["redis://pool", "mooncake://", "mooncake://a/b", "mooncake://a?colour=red", "pool:1"])
def test_other_addresses_are_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigError, match=r"expected mooncake://MASTER"):
        MooncakeAddress.parse(url)


def test_a_port_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match="no valid port"):
        MooncakeAddress.parse("mooncake://a:99999")


def test_without_the_library_the_message_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ConfigError, match=r"energyopt\[mooncake\]"):
        MooncakeStore(MooncakeAddress.parse("mooncake://a"), "layout", 1 << 24, SIZE)


def test_a_full_pool_is_full_or_evicts_but_never_errs(mooncake_pool: MooncakePool) -> None:
    size = 1 << 20
    store = MooncakeStore(MooncakeAddress.parse(mooncake_pool.url), "full", 1 << 24, size)
    block = _block("x", size)
    ends = [store.put([b"%d" % at], [block], [checksum(block)])[0] for at in range(40)]
    assert ends[0] is Put.STORED
    assert set(ends) <= {Put.STORED, Put.FULL}
    store.reset()
    store.close()


def test_the_death_of_the_master_and_its_return(mooncake_pool: MooncakePool, make_tiers: type[TierRig]) -> None:
    store = MooncakeStore(MooncakeAddress.parse(mooncake_pool.url), "death", 1 << 24, 64)
    rig = make_tiers(host_blocks=0, stores={"shared": store}, patience=0.5, fresh=0.2)
    rig.stored(a="one")
    assert rig.found("a") == ("shared",)
    mooncake_pool.kill()
    try:
        start = time.monotonic()
        while rig.found("a"):
            assert rig.load("a").loaded or time.monotonic() - start < 5
        assert time.monotonic() - start < 5
        assert rig.found("b") == ()
        assert time.monotonic() - start < 6, "a request may not wait for a dead pool"
        assert sum(rig.tiers.counts()[0].failures.values()) >= 1
    finally:
        mooncake_pool.start()
    deadline = time.monotonic() + 40
    while not rig.found("c"):
        assert time.monotonic() < deadline, "the pool did not come back"
        rig.stored(c="three")
        time.sleep(0.2)
    assert len(rig.load("c").loaded) == 1
    assert rig.content(32) == "three"


def test_a_master_that_comes_later_is_joined_then(mooncake_pool: MooncakePool) -> None:
    mooncake_pool.kill()
    try:
        store = MooncakeStore(MooncakeAddress.parse(mooncake_pool.url), "later", 1 << 24, SIZE)
        with pytest.raises(StoreDownError, match="cannot be reached"):
            store.contains([b"a"])
    finally:
        mooncake_pool.start()
    block = _block("hello")
    assert list(store.put([b"a"], [block], [checksum(block)])) == [Put.STORED]
    into = memoryview(bytearray(SIZE))
    assert list(store.get([b"a"], [into])) == [Got.WHOLE]
    assert into == block
    store.close()
    with pytest.raises(StoreDownError, match="closed"):
        store.contains([b"a"])
