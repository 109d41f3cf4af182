"""A configuration becomes tiers, or a sentence that says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError
from engine.fake import FakeRunner
from engine.fake_mover import FakeMover
from engine.kv.assembly import default_folder, open_tiers
from engine.kv.copier import CHUNK
from engine.kv.tiers import Tiers


def _open(*tiers: dict[str, object], **kv: object) -> Tiers | None:
    config = EngineConfig.model_validate({"model": "fake", "kv": {"tiers": tiers, **kv}})
    return open_tiers(config, FakeMover(FakeRunner()), MonotonicClock())


def test_no_tiers_are_none() -> None:
    assert _open() is None


def test_tiers_stand_in_the_order_of_the_configuration(tmp_path: Path) -> None:
    tiers = _open(
        {"kind": "host", "bytes_per_rank": 1000}, {"kind": "disk", "bytes_per_host": 1 << 20, "path": str(tmp_path)}
    )
    assert tiers is not None
    assert tiers.names == ("host", "disk")
    assert [count.tier for count in tiers.counts()] == ["host", "disk"]
    tiers.close()


def test_staging_holds_what_the_load_of_each_store_takes_together(tmp_path: Path) -> None:
    """Blocks as long as a step: two buffers were not enough for a load of three, which then failed after its wait."""
    disk = {"kind": "disk", "bytes_per_host": 1 << 20, "path": str(tmp_path)}
    config = EngineConfig.model_validate(
        {"model": "fake", "max_num_batched_tokens": 64, "kv": {"tiers": [disk], "block_tokens": 64}}
    )
    tiers = open_tiers(config, FakeMover(FakeRunner()), MonotonicClock())
    assert tiers is not None
    assert tiers._staging.capacity >= CHUNK
    tiers.close()


def test_a_tier_without_room_for_a_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="host tier has no room"):
        _open({"kind": "host", "bytes_per_host": 100})
    with pytest.raises(ConfigError, match="disk tier has no room"):
        _open({"kind": "disk", "bytes_per_host": 100, "path": str(tmp_path)})


def test_a_pool_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a pool's address"):
        _open({"kind": "shared", "bytes_per_host": 1 << 24, "path": "http://pool"})


def test_a_disk_tier_without_a_path_lies_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "energyopt" / "kv"
    tiers = _open({"kind": "disk", "bytes_per_host": 1 << 20})
    assert tiers is not None
    assert list(default_folder().glob("kv1-*"))
    tiers.close()
