"""``energyopt workload cache-curve``: sizes as people write them, the document, the page for a person."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from energyopt.cli.cache_curve import cache_curve, parse_size, parse_tiers
from energyopt.core.errors import ConfigError

ROWS = [[1, 2, 3], [1, 2, 3, 4], [5, 6], [1, 2, 3, 4, 7], [5, 6, 8]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "made.jsonl"
    rows = [
        {"timestamp": 1000 * at, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for at, ids in enumerate(ROWS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run(*arguments: object) -> str:
    app = Typer()
    app.command()(cache_curve)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_document(trace: Path) -> None:
    found = json.loads(
        run(trace, "--blocks", "5,50%,inf", "--tiers", "host=100%", "--kv-bytes-per-token", "1kB", "--json")
    )
    assert (found["block_tokens"], found["requests"], found["blocks"], found["distinct_blocks"]) == (512, 5, 17, 8)
    assert found["ideal_hit_rate"] == 9 / 17
    assert [point["blocks"] for point in found["points"]] == [5, 4, None]
    small = found["points"][0]
    assert small["tokens"] == 2560
    assert small["bytes"] == 2_560_000
    assert small["hit_rate"] == pytest.approx(sum(small["hit_rate_by_tier"].values()))
    assert small["hit_rate_by_tier"]["host"] > 0
    assert found["points"][1]["refused"] == 1
    assert found["points"][2]["hit_rate"] == found["ideal_hit_rate"]
    assert found["enough"] == {"share_of_ideal": 0.95, "blocks": 5}


def test_the_page_for_a_person(trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    page = run(trace, "--blocks", "4,6,8,inf", "--plot", picture)
    assert "5 requests, 8 distinct blocks of 512 tokens" in page
    assert "no limit" in page
    assert "a pool of 8 blocks (4,096 tokens) reaches 95% of the ideal hit rate" in page
    assert "count as misses" in page
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_hybrid_keeps_what_its_interval_says(trace: Path) -> None:
    rates = [
        json.loads(run(trace, "--blocks", "inf", "--recurrent", "--retention", interval, "--json"))["points"][0][
            "hit_rate"
        ]
        for interval in ("0", "512", "dense")
    ]
    assert rates == [9 / 17] * 3, "every prompt here goes on where another ended"
    with pytest.raises(ConfigError, match="multiple of 512"):
        run(trace, "--retention", "100")


@pytest.mark.parametrize(("text", "size"), [("4000", 4000), ("25%", 50), ("0.1%", 1), ("inf", None), (" 7 ", 7)])
def test_sizes(text: str, size: int | None) -> None:
    assert parse_size(text, 200) == size


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "many", "nan", "%", "1e400", "infinity"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a size of a pool"):
        parse_size(text, 200)


@pytest.mark.parametrize("text", ["ram=5", "host=1,host=2", "host", "disk=x"])
def test_what_is_no_tier_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_tiers(text, 200)
