from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.rope import rope, rope_into_pages
from kernels.rope_scaling import Linear, Llama3, Plain, Scaling, Yarn, rotary_tables
from kernels.twins import rope as plain

Draw = Callable[..., torch.Tensor]
Near = Callable[[torch.Tensor, torch.Tensor], None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("width", "rotary", "start", "interleaved"),
    [
        (64, 64, 0, False), (80, 32, 0, False), (96, 96, 0, True), (128, 64, 0, True), (192, 64, 128, False),
        (576, 64, 512, True),
    ],
)  # fmt: skip
def test_rotates_and_writes_pages_like_the_twin(
    width: int, rotary: int, start: int, interleaved: bool, dtype: torch.dtype, draw: Draw, assert_near: Near
) -> None:
    cos, sin = rotary_tables(rotary, 1e4, 50)
    query, key, value = draw(9, 4, width, dtype=dtype), draw(9, 2, width, dtype=dtype), draw(9, 2, 48, dtype=dtype)
    positions, slots = torch.arange(9) * 5, torch.tensor([0, 79, 31, -1, 32, 1, 2, 3, 4])
    pages = [torch.full((5, 16, 2, size), 9.0, dtype=dtype) for size in (width, 48)]
    expected_pages = [page.clone() for page in pages]
    first = (query, key, value, positions, cos, sin)
    out = rope_into_pages(*first, pages[0], pages[1], slots, start=start, interleaved=interleaved)
    expected = plain.rope_into_pages(
        *first, expected_pages[0], expected_pages[1], slots, start=start, interleaved=interleaved
    )
    assert_near(out, expected)
    for page, expected_page in zip(pages, expected_pages, strict=True):
        assert_near(page, expected_page)


def test_queries_alone_and_slices_of_a_fused_projection(draw: Draw, assert_near: Near) -> None:
    cos, sin = rotary_tables(64, 1e4, 9)
    fused = draw(7, 6, 64)
    positions = torch.arange(7, dtype=torch.int32)
    assert_near(rope(fused[:, 1:5], positions, cos, sin), plain.rope(fused[:, 1:5], positions, cos, sin))


def test_latent_keys_need_no_values(draw: Draw) -> None:
    cos, sin = rotary_tables(64, 1e4, 9)
    pages = torch.full((1, 16, 1, 576), 9.0)
    key = draw(2, 1, 576)
    rope_into_pages(
        draw(2, 4, 576), key, None, torch.tensor([0, 3]), cos, sin, pages, None, torch.tensor([0, 1]), start=512
    )
    assert torch.equal(pages[0, :2, :, :512], key[..., :512])
    assert torch.equal(pages[0, 0], key[0])
    assert (pages[0, 2:] == 9).all()


def test_pages_in_eight_bits_hold_the_scaled_value(draw: Draw) -> None:
    # Small whole numbers at position 0: the interpreter's rounding to eight bits loses carries, so nothing may round.
    cos, sin = rotary_tables(64, 1e4, 1)
    key, value = (4 * draw(4, 1, 64)).round().clamp(-16, 16), (4 * draw(4, 1, 64)).round().clamp(-16, 16)
    pages = [torch.zeros(1, 16, 1, 64).to(torch.float8_e4m3fn) for _ in range(2)]
    rope_into_pages(
        draw(4, 2, 64),
        key,
        value,
        torch.zeros(4).int(),
        cos,
        sin,
        pages[0],
        pages[1],
        torch.arange(4),
        scales=(0.5, 4.0),
    )
    assert torch.equal(pages[0][0, :4].float() * 0.5, key)
    assert torch.equal(pages[1][0, :4].float() * 4.0, value)


def test_refuses_what_does_not_fit(draw: Draw) -> None:
    cos, sin = rotary_tables(64, 1e4, 9)
    with pytest.raises(ValueError, match="64 columns from 32 on does not fit heads of 64"):
        rope(draw(1, 1, 64), torch.zeros(1).int(), cos, sin, start=32)
    with pytest.raises(ValueError, match="neighbours"):
        rope(draw(1, 64, 64).transpose(1, 2), torch.zeros(1).int(), cos, sin)
    with pytest.raises(ValueError, match="even and positive, not 63"):
        rotary_tables(63, 1e4, 9)
    with pytest.raises(ValueError, match="together or not at all"):
        rope_into_pages(draw(1, 1, 64), draw(1, 1, 64), None, cos, cos, sin, cos, cos, cos)


CONFIGS: list[tuple[Scaling, dict[str, Any]]] = [
    (Plain(), {"rope_type": "default"}),
    (Linear(4.0), {"rope_type": "linear", "factor": 4.0}),
    (
        Llama3(8.0, 1.0, 4.0, 8192),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    (Yarn(4.0, 4096), {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}),
    (
        Yarn(40.0, 4096, stretch=1.0),
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    ),
]


@pytest.mark.parametrize("partial", [1.0, 0.5])
@pytest.mark.parametrize(("scaling", "parameters"), CONFIGS)
def test_frequencies_equal_those_of_transformers(scaling: Scaling, parameters: dict[str, Any], partial: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=256, num_attention_heads=2, head_dim=128, max_position_embeddings=131072,
        rope_parameters={**parameters, "rope_theta": 500_000.0, "partial_rotary_factor": partial},
    )  # fmt: skip
    width = int(128 * partial)
    if parameters["rope_type"] == "default":
        frequencies, stretch = 500_000.0 ** (-torch.arange(0, width, 2) / width), 1.0
    else:
        frequencies, stretch = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    angles = torch.outer(torch.arange(100).double(), frequencies.double())
    cos, sin = rotary_tables(width, 500_000.0, 100, scaling)
    torch.testing.assert_close(cos, (angles.cos() * stretch).float(), atol=2e-5, rtol=0)
    torch.testing.assert_close(sin, (angles.sin() * stretch).float(), atol=2e-5, rtol=0)
