from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
import torch

from kernels import launch
from kernels.demand import Demand
from kernels.demand import obstacle as unmet
from kernels.platform import (
    ARCHS,
    INTERPRETER,
    Arch,
    UnsupportedDeviceError,
    arch_named,
    arch_of,
    multiprocessors,
    triton_fault,
    triton_release,
)

ALL = pytest.mark.parametrize("arch", [*ARCHS.values(), INTERPRETER], ids=lambda arch: arch.name)


def is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@pytest.mark.parametrize(("value", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (64, 64), (65, 128), (576, 1024)])
def test_power_of_two(value: int, power: int) -> None:
    assert launch.power_of_two(value) == power


@ALL
@pytest.mark.parametrize("width", [1, 64, 80, 4096, 14336, 16384])
@pytest.mark.parametrize("rows", [1, 64, 8192])
def test_rows_fit_a_program(arch: Arch, width: int, rows: int) -> None:
    tile = launch.elementwise(arch, width, rows)
    assert tile.columns >= width
    assert is_power_of_two(tile.rows)
    assert is_power_of_two(tile.warps)
    assert tile.warps * arch.warp <= 1024
    assert tile.rows == 1 or tile.rows * tile.columns <= 4096


@ALL
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
def test_attention_tiles_fit_shared_memory_and_matrix_units(arch: Arch, head_dim: int, itemsize: int) -> None:
    for tile in (
        launch.decode_attention(arch, 8, head_dim, itemsize),
        launch.prefill_attention(arch, head_dim, itemsize),
        launch.latent_attention(arch, 128, 512, itemsize),
        launch.latent_prefill_attention(arch, 512, itemsize),
    ):
        assert tile.queries >= launch.MIN_DOT
        assert tile.keys >= launch.MIN_DOT
        assert is_power_of_two(tile.queries)
        assert is_power_of_two(tile.keys)
    tile = launch.decode_attention(arch, 8, head_dim, itemsize)
    held = 2 * tile.stages * tile.keys * launch.power_of_two(head_dim) * itemsize
    assert held <= arch.shared_bytes or tile.keys == launch.MIN_DOT
    tile = launch.latent_prefill_attention(arch, 512, 2)
    assert (tile.queries + tile.stages * tile.keys) * 576 * 2 <= arch.shared_bytes


def test_tritons_release_is_asked_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCm's wheels are no distribution called triton."""
    pytest.importorskip("triton")

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", absent)
    monkeypatch.setattr("triton.__version__", "3.5.1+rocm7.0")
    assert triton_release() == "3.5.1+rocm7.0"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert triton_release() is None
    assert "not installed" in str(triton_fault())


def test_a_triton_that_cannot_be_imported_is_none_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")

    def broken(name: str) -> None:
        raise ImportError("libtriton.so: GLIBC_2.38 not found")

    monkeypatch.setattr("importlib.import_module", broken)
    assert triton_release() is None
    assert triton_fault() == "triton cannot be imported: libtriton.so: GLIBC_2.38 not found"


@ALL
@pytest.mark.parametrize("rows", [2, 16, 33, 512, 100_000])
def test_product_tiles_are_whole(arch: Arch, rows: int) -> None:
    for itemsize in (2, 4):
        tile = launch.gemm(arch, rows, itemsize)
        assert all(is_power_of_two(extent) and extent >= launch.MIN_DOT for extent in (tile.m, tile.n, tile.k))
        assert tile.stages * (tile.m + tile.n) * tile.k * itemsize <= arch.shared_bytes


def test_splits_fill_the_device_but_never_make_crumbs() -> None:
    assert launch.splits(programs=512, tokens=8192, keys=64, multiprocessors=132) == 1
    assert launch.splits(programs=8, tokens=8192, keys=64, multiprocessors=132) == 32
    assert launch.splits(programs=8, tokens=300, keys=64, multiprocessors=132) == 1
    assert launch.splits(programs=1, tokens=10**6, keys=64, multiprocessors=300) == 64
    assert launch.splits(programs=0, tokens=0, keys=64, multiprocessors=132) == 1


@ALL
def test_few_outputs_are_spread_over_many_programs(arch: Arch) -> None:
    assert launch.vector_rows(arch, 2 * arch.multiprocessors).rows == 1
    assert launch.vector_rows(arch, 1 << 17).rows > 1
    assert launch.vocabulary(arch, 128_256).warps * arch.warp <= 1024


def test_rocm_copies_are_cut() -> None:
    assert launch.copies_per_launch(arch_named("gfx942")) < launch.copies_per_launch(arch_named("sm_90"))


def test_the_table_is_plausible() -> None:
    for arch in ARCHS.values():
        assert arch.warp == (64 if arch.name.startswith("gfx9") else 32)
        assert arch.shared_bytes >= 64 * 1024
        assert arch.is_amd == arch.name.startswith("gfx")
    assert arch_named("gfx942").fp8 is torch.float8_e4m3fnuz
    assert arch_named("gfx950").fp8 is torch.float8_e4m3fn
    assert arch_named("sm_80").fp8 is None


def test_an_unknown_architecture_is_refused_with_those_known() -> None:
    with pytest.raises(ValueError, match="'sm_10'; known are sm_80"):
        arch_named("sm_10")
    with pytest.raises(ValueError, match="not 'meta'"):
        arch_of(torch.device("meta"))


def test_a_gpu_that_is_not_in_the_table_gets_the_least_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SimpleNamespace(major=12, minor=1, multi_processor_count=48, gcnArchName="gfx9999:xnack-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: seen)
    unknown = arch_of(torch.device("cuda"))
    assert (unknown.name, unknown.warp, unknown.shared_bytes, unknown.fp8) == ("sm_121", 32, 99 * 1024, None)
    assert unknown.multiprocessors == 48
    assert unmet(Demand(torch.bfloat16, 32, 8, 128), unknown) is None
    seen.major, seen.minor = 7, 5
    with pytest.raises(
        UnsupportedDeviceError, match="architecture sm_75 is too old for these kernels: sm_80 is the ol"
    ):
        arch_of(torch.device("cuda"))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert (arch_of(torch.device("cuda")).warp, arch_of(torch.device("cuda")).matrix) == (64, "mfma")
    seen.gcnArchName = "gfx1250"
    assert (arch_of(torch.device("cuda")).name, arch_of(torch.device("cuda")).warp) == ("gfx1250", 32)


@ALL
def test_every_published_model_can_be_computed(arch: Arch) -> None:
    for heads, kv_heads, width, latent in [(32, 8, 128, 0), (9, 3, 64, 0), (16, 1, 256, 0), (128, 0, 576, 512)]:
        assert unmet(Demand(torch.float16, heads, kv_heads, width, latent), arch) is None


@pytest.mark.parametrize(
    ("demand", "arch", "says"),
    [
        (Demand(torch.float64), "sm_90", "compute in float32, float16, bfloat16, not in float64"),
        (Demand(torch.bfloat16), "interpreter", "interpreter gets bfloat16 wrong"),
        (Demand(torch.float16, 10, 4, 64), "sm_90", "10 query heads cannot share 4 key heads evenly"),
        (Demand(torch.float16, 16, 0, 560, 512), "sm_90", "a power of two of columns beside the latent ones, not 48"),
        (Demand(torch.bfloat16, 8, 8, 8), "sm_90", "matrix units take 16 columns of a head or more, not 8"),
        (Demand(torch.bfloat16, 8, 0, 40, 32), "gfx942", "matrix units take 16 columns of a head or more, not 8"),
        (Demand(torch.float32, 8, 8, 1024), "sm_86", "needs 198656 bytes of shared memory, and sm_86 has 101376"),
    ],
)
def test_what_a_model_asks_and_an_architecture_lacks_is_named(demand: Demand, arch: str, says: str) -> None:
    assert says in str(unmet(demand, INTERPRETER if arch == "interpreter" else arch_named(arch)))


def test_a_device_is_recognised_by_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arch_of(torch.device("cpu")) is INTERPRETER
    seen = SimpleNamespace(major=9, minor=0, multi_processor_count=114, gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: seen)
    assert arch_of(torch.device("cuda")).name == "sm_90"
    assert multiprocessors(torch.device("cuda"), arch_named("sm_90")) == 114
    assert multiprocessors(torch.device("cpu"), arch_named("sm_90")) == 132
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert arch_of(torch.device("cuda")).name == "gfx942"
