"""A launch command starts exactly the deployment it is for, in our CLI and, as far as it can, in vLLM."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.errors import ConfigError, NoFeasibleError
from energyopt.core.study import Origin, Recommendation, StudyState
from energyopt.core.units import parse_hertz, parse_watts
from energyopt.store.memory import MemoryStudyStore
from tuner.export.command import LaunchCommand, serve_command, vllm_command
from tuner.export.manifest import manifest_json
from tuner.export.names import published
from tuner.export.sglang import sglang_command
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_space, toy_spec
from tuner.loop import StudyRunner


def deploy(power: dict[str, Any] | None = None, **engine: Any) -> Deployment:
    fields = {"model": "toy"} | engine
    return Deployment.model_validate({"decode": {"engine": fields, "power": power or {}}})


def test_the_default_deployment_needs_no_flags() -> None:
    assert serve_command(deploy()).argv == ("energyopt", "serve", "toy")


def test_flags_that_differ_are_written_and_tuned_ones_always() -> None:
    command = serve_command(deploy(max_num_seqs=16, kv={"prefix_caching": False}), tuned=toy_space())
    assert command.argv == (
        *("energyopt", "serve", "toy"),
        *("--max-num-seqs", "16", "--max-num-batched-tokens", "2048", "--block-size", "16"),
        "--no-enable-prefix-caching",
    )
    assert command.dropped == ()


def test_power_is_written_with_units_that_read_back_exactly() -> None:
    argv = serve_command(deploy(power={"cap": 382.5, "sm_clock": 1.755e9})).argv
    assert argv[3:] == ("--power-cap", "382.5W", "--sm-clock", "1755MHz")
    assert (parse_watts(argv[4]), parse_hertz(argv[6])) == (382.5, 1.755e9)


def test_vllm_gets_its_own_names_and_hears_what_it_lacks() -> None:
    command = vllm_command(deploy(threads=4, power={"cap": 300.0}, layout={"tp": 2}, kv={"memory_bytes": 2**30}))
    assert command.argv[:3] == ("vllm", "serve", "toy")
    words = " ".join(command.argv)
    assert "--tensor-parallel-size 2" in words
    assert "--kv-cache-memory-bytes 1073741824" in words
    assert "--max-num-seqs 64 --max-num-batched-tokens 2048 --block-size 16 --enable-prefix-caching" in words
    assert "power" not in words
    assert "threads" not in words
    assert [note.split(" has")[0] for note in command.dropped] == ["--threads 4", "--power-cap 300W"]


def pools(prefill: dict[str, Any], decode: dict[str, Any]) -> Deployment:
    engine = {"model": "toy"}
    return Deployment.model_validate({"prefill": {"engine": engine, **prefill}, "decode": {"engine": engine, **decode}})


def test_two_pools_of_equal_engines_are_one_command() -> None:
    command = serve_command(pools({"replicas": 2}, {"replicas": 3}))
    assert command.argv[3:] == ("--prefill", "2", "--decode", "3")
    wide = {"engine": {"model": "toy", "layout": {"tp": 4}}}
    assert serve_command(pools(wide, {})).argv[-2:] == ("--prefill-tp", "4")
    experts = [{"engine": {"model": "toy", "layout": {"tp": tp, "ep": tp}}} for tp in (4, 2)]
    assert serve_command(pools(*experts)).argv[-2:] == ("--prefill-tp", "4"), "experts over a pool's own ranks"
    replicas = {"engine": {"model": "toy", "layout": {"tp": 2, "dp": 2, "ep": 4}}}
    with pytest.raises(ConfigError, match="not allowed in pools"):
        serve_command(pools(replicas, replicas))


@pytest.mark.parametrize("make", [vllm_command, sglang_command])
def test_another_engine_takes_one_pool_of_one(make: Callable[[Deployment], LaunchCommand]) -> None:
    with pytest.raises(ConfigError, match="more than one command"):
        make(pools({}, {}))
    with pytest.raises(ConfigError, match="replicas = 2"):
        make(Deployment(decode=PoolConfig(engine=EngineConfig(model="toy"), replicas=2)))


def test_a_layout_has_the_flags_of_both_engines() -> None:
    command = serve_command(deploy(layout={"tp": 4, "pp": 2, "dcp": 2}))
    assert " --tensor-parallel-size 4 --pipeline-parallel-size 2 --decode-context-parallel-size 2" in command.shell


def test_hostile_names_are_quoted_and_no_option() -> None:
    for model in ("a b; rm -rf ~", "$(id)"):
        command = serve_command(deploy(model=model, served_model_name="x'y", seed=3))
        assert shlex.split(command.shell) == list(command.argv)
        assert model in command.argv
    for make in (serve_command, vllm_command, sglang_command):
        with pytest.raises(ConfigError, match=r"looks like an option.*write \./--power-cap"):
            make(deploy(model="--power-cap"))


def test_tiers_are_written_with_exact_sizes_and_their_places() -> None:
    tiers = [
        {"kind": "host", "bytes_per_rank": 3 * 2**29},
        {"kind": "disk", "bytes_per_host": 5, "path": "/cache"},
        {"kind": "shared", "bytes_per_host": 2**31, "path": "mooncake://h:50051"},
    ]
    words = serve_command(deploy(kv={"tiers": tiers, "tier_load": "cheaper"})).argv[3:]
    told = dict(zip(words[::2], words[1::2], strict=True))
    assert told.pop("--kv-tier-load") == "cheaper"
    assert float(told.pop("--kv-disk-gib-per-host")) * 2**30 == 5
    assert told == {
        "--kv-host-gib-per-rank": "1.5",
        "--kv-disk-path": "/cache",
        "--kv-shared-gib-per-host": "2.0",
        "--kv-shared-url": "mooncake://h:50051",
    }
    assert any("KV tiers have no counterpart" in note for note in vllm_command(deploy(kv={"tiers": tiers})).dropped)


@pytest.mark.parametrize(
    ("model", "name", "note"),
    [
        ("org/model", "org/model", None),
        ("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", "name of energyopt: .* 16-bit weights"),
        ("qwen3-8b", "Qwen/Qwen3-8B", "simulator"),
        ("/models/x", "/models/x", "path of the machine"),
        ("./x.gguf", "./x.gguf", "path of the machine"),
        ("toy", "toy", "no name of a public registry"),
    ],
)
def test_another_engine_gets_a_name_that_it_can_find_or_the_reader_a_word(
    model: str, name: str, note: str | None
) -> None:
    assert published(model)[0] == name
    command = vllm_command(deploy(model=model))
    assert command.argv[2] == name
    assert command.notes == () if note is None else re.search(note, command.notes[0])
    assert serve_command(deploy(model=model)).argv[2] == model


def test_speculation_and_parsers_are_spelled_for_each_engine() -> None:
    deployment = deploy(speculative_config={"num_speculative_tokens": 3}, tool_call_parser="hermes", idle_sleep=60)
    ours, theirs = serve_command(deployment).argv, vllm_command(deployment)
    assert json.loads(ours[ours.index("--speculative-config") + 1]) == {"method": "ngram", "num_speculative_tokens": 3}
    assert ours[ours.index("--idle-sleep") + 1] == "60.0"
    told = json.loads(theirs.argv[theirs.argv.index("--speculative-config") + 1])
    assert told["num_speculative_tokens"] == 3
    assert "adaptive" not in told
    assert any("depth of speculation" in note for note in theirs.dropped)
    assert any("idle-sleep 60.0 has no counterpart" in note for note in theirs.dropped)
    assert "--enable-auto-tool-choice" in theirs.argv
    assert "--enable-expert-parallel" in vllm_command(deploy(layout={"tp": 2, "ep": 2})).argv


def test_none_is_written_where_it_is_a_choice() -> None:
    """A study from before the default changed keeps every state; its command must say so."""
    assert serve_command(deploy(kv={"retention_interval": None})).argv[3:] == (
        "--prefix-cache-retention-interval",
        "dense",
    )
    assert serve_command(deploy()).argv == ("energyopt", "serve", "toy")


def parse(argv: tuple[str, ...]) -> dict[str, str | bool]:
    """Flags back to a mapping, as a plain parser reads them."""
    found: dict[str, str | bool] = {}
    words = list(argv[3:])
    while words:
        name = words.pop(0).removeprefix("--")
        if "enable-" in name:
            found[name.removeprefix("no-")] = not name.startswith("no-")
        else:
            found[name] = words.pop(0)
    return found


@given(
    seqs=st.integers(1, 512), tokens=st.integers(512, 9000), block=st.integers(1, 1024),
    prefix=st.booleans(), threads=st.none() | st.integers(1, 99),
)  # fmt: skip
def test_a_command_carries_every_setting(seqs: int, tokens: int, block: int, prefix: bool, threads: int | None) -> None:
    kv = {"block_tokens": block, "prefix_caching": prefix}
    deployment = deploy(max_num_seqs=seqs, max_num_batched_tokens=tokens, threads=threads, kv=kv)
    found = parse(serve_command(deployment).argv)
    defaults = {"max-num-seqs": "64", "max-num-batched-tokens": "2048", "block-size": "16"}
    seen = {**defaults, "enable-prefix-caching": True, **found}
    expected = {
        "max-num-seqs": str(seqs),
        "max-num-batched-tokens": str(tokens),
        "block-size": str(block),
        "enable-prefix-caching": prefix,
    }
    assert seen == (expected if threads is None else expected | {"threads": str(threads)})


def study(spec_changes: dict[str, Any] | None = None) -> tuple[MemoryStudyStore, str]:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(toy_spec(trials=5, pairs=2, **(spec_changes or {})), {"cpu": "toy"}).id
    try:
        StudyRunner(store, FakeEvaluator(clock), FakePowerController(), clock, "me").run(study_id)
    except NoFeasibleError:
        assert store.study(study_id).state is StudyState.NO_FEASIBLE
    return store, study_id


def test_the_manifest_holds_the_deployment_its_command_and_the_evidence() -> None:
    store, study_id = study()
    record, trials = store.study(study_id), store.trials(study_id)
    document = json.loads(manifest_json(record, trials, version="1.2.3"))
    assert record.recommendation is not None
    winner = trials[record.recommendation.trial]
    assert Deployment.model_validate(document["deployment"]) == winner.deployment
    assert document["commands"]["energyopt"]["argv"][:2] == ["energyopt", "serve"]
    assert document["commands"]["vllm"]["argv"][:2] == ["vllm", "serve"]
    assert document["energyopt"] == "1.2.3"
    numbers = [entry["number"] for entry in document["evidence"]]
    repeats = {t.number for t in trials if t.deployment in (winner.deployment, record.spec.baseline)}
    assert set(numbers) == {0, winner.number} | repeats | {t.number for t in trials if t.origin.verifies}
    assert document["evidence"][0]["result"]["energy"]["sources"] == ["simulated"]
    assert document["question"]["space_digest"] == record.spec.space.digest()


def test_the_manifest_has_every_repetition_of_the_compared_and_says_why_a_command_is_not_there() -> None:
    store, study_id = study()
    record, trials = store.study(study_id), store.trials(study_id)
    again = trials[0].model_copy(update={"number": 99, "origin": Origin.REPEAT})
    several = trials[0].deployment.decode.model_copy(update={"replicas": 2})
    found = record.model_copy(update={"recommendation": Recommendation(trial=98, verified=False, pairs=0)})
    winner = trials[0].model_copy(update={"number": 98, "deployment": Deployment(decode=several)})
    document = json.loads(manifest_json(found, [*trials, winner, again], version="1"))
    assert {98, 99} <= {entry["number"] for entry in document["evidence"]}
    assert "energyopt router" in document["commands"]["energyopt"]["none"]
    assert "replicas = 2" in document["commands"]["vllm"]["none"]


def test_the_manifest_of_a_study_without_a_winner_promises_none() -> None:
    store, study_id = study({"slos": ("itl:p99<1us",)})
    document = json.loads(manifest_json(store.study(study_id), store.trials(study_id), version="1"))
    assert document["recommendation"] is None
    assert document["deployment"] is None
    assert document["commands"] is None
    assert len(document["evidence"]) == 1
