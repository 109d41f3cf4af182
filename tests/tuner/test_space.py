"""Only valid points are in the space, and every point that is not says which rule removed it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.config import Deployment, EngineConfig, KvConfig, PoolConfig, PowerConfig, SpeculativeConfig
from energyopt.core.errors import ConfigError
from energyopt.core.study import Knob, Space, Value
from tuner.fake_study import toy_deployment, toy_space
from tuner.paths import knob_paths
from tuner.space import ABSENT_PART, DEFAULT_RULES, IDLE_KNOB, SearchSpace, at_most_devices

SMALL = SearchSpace(toy_space(small=True), toy_deployment())


def space(*knobs: Knob, baseline: Deployment | None = None) -> SearchSpace:
    return SearchSpace(Space(knobs=knobs), baseline or toy_deployment())


def test_every_valid_point_builds_a_deployment_that_differs_only_in_its_knobs() -> None:
    for params in SMALL.plan.points:
        pool = SMALL.apply(params).decode
        engine = pool.engine
        assert engine.max_num_seqs == params["decode.engine.max_num_seqs"]
        assert pool.power.sm_clock == params["decode.power.sm_clock"]
        assert engine.max_num_batched_tokens == params["decode.engine.max_num_batched_tokens"]
        assert engine.model == "toy"


def test_removed_points_are_counted_by_rule_and_nothing_is_lost() -> None:
    plan = SMALL.plan
    assert plan.total == 18
    assert len(plan.points) == 14
    (rule,) = plan.removed
    assert plan.removed[rule] == 4
    assert rule.startswith("max_num_batched_tokens is below max_num_seqs")


def test_a_removed_point_explains_itself_in_check_and_in_apply() -> None:
    params = {**SMALL.baseline_params, "decode.engine.max_num_batched_tokens": 32}
    rejection = SMALL.check(params)
    assert rejection is not None
    assert "32" in rejection.reason
    with pytest.raises(ConfigError, match=r"not a valid configuration: .*32 is below max_num_seqs 64"):
        SMALL.apply(params)


def test_the_baseline_is_a_point_and_applying_it_changes_nothing() -> None:
    assert SMALL.apply(SMALL.baseline_params) == toy_deployment()


def test_an_unknown_path_names_the_allowed_ones() -> None:
    with pytest.raises(ConfigError, match=r"'decode.engine.max_seqs' is no knob.*decode\.engine\.max_num_seqs"):
        space(Knob(path="decode.engine.max_seqs", values=(1,)))


@pytest.mark.parametrize("path", ["decode", "decode.engine", "decode.engine.kv", "decode.power.cap.x", ""])
def test_only_scalar_fields_are_knobs(path: str) -> None:
    with pytest.raises(ConfigError, match="is no knob"):
        space(Knob(path=path, values=(1,)))


def test_the_known_paths_cover_both_pools_and_every_level() -> None:
    paths = knob_paths()
    for path in ("engine.kv.block_tokens", "engine.threads", "power.cap", "power.sm_clock", "engine.layout.tp"):
        assert f"decode.{path}" in paths
        assert f"prefill.{path}" in paths


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ([Knob(path="decode.replicas", values=(1,)), Knob(path="decode.replicas", values=(1,))], "given twice"),
        ([Knob(path="decode.replicas", values=(1, 2, 1))], "a value twice"),
        ([Knob(path="decode.replicas", values=(2, 3))], "lacks the baseline's value 1"),
        ([Knob(path="prefill.replicas", values=(1,))], "has no prefill pool"),
    ],
)
def test_a_contradictory_space_is_refused(knobs: list[Knob], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space(*knobs)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"decode.replicas": 3}, "not in the space: it has 1, 2"),
        ({}, "lacks a value"),
        ({"decode.replicas": 1, "decode.other": 1}, "'decode.other' is no knob"),
    ],
)
def test_a_point_of_another_space_is_refused(params: dict[str, Value], message: str) -> None:
    own = space(Knob(path="decode.replicas", values=(1, 2)))
    for ask in (own.apply, own.check, own.index):
        with pytest.raises(ConfigError, match=message):
            ask(params)


def test_true_and_one_are_two_values() -> None:
    own = space(Knob(path="decode.engine.kv.prefix_caching", values=(True, 1, False), ordinal=False))
    assert own.index({"decode.engine.kv.prefix_caching": True}) == (0,)
    assert own.index({"decode.engine.kv.prefix_caching": 1}) == (1,)


def test_a_space_that_rules_empty_is_an_error_that_names_them() -> None:
    with pytest.raises(ConfigError, match=r"No point .* at most 0 devices"):
        _ = SearchSpace(toy_space(small=True), toy_deployment(), [at_most_devices(0)]).plan


def test_a_space_too_big_to_list_is_refused_without_listing_it() -> None:
    huge = space(*(Knob(path=p, values=tuple(range(1, 2000))) for p in ("decode.replicas", "decode.engine.layout.ep")))
    with pytest.raises(ConfigError, match="3996001 points"):
        _ = huge.plan


def test_pools_of_one_host_share_one_power_setting() -> None:
    pool = PoolConfig(engine=EngineConfig(model="toy"))
    two = Deployment(decode=pool, prefill=pool)
    own = space(Knob(path="decode.power.cap", values=(200.0, None)), baseline=two)
    assert [point["decode.power.cap"] for point in own.plan.points] == [None]
    assert dict(own.plan.removed) == {DEFAULT_RULES[0].name: 1}


def test_pydantics_rules_on_nested_models_remove_points_too() -> None:
    kv = KvConfig(retention_interval=32)
    baseline = Deployment(decode=PoolConfig(engine=EngineConfig(model="toy", kv=kv), power=PowerConfig()))
    own = space(Knob(path="decode.engine.kv.block_tokens", values=(16, 24, 32)), baseline=baseline)
    assert [point["decode.engine.kv.block_tokens"] for point in own.plan.points] == [16, 32]


def test_the_digest_names_the_space() -> None:
    other = Space(knobs=toy_space(small=True).knobs[:-1])
    assert SMALL.digest == SearchSpace(toy_space(small=True), toy_deployment()).digest
    assert SMALL.digest != SearchSpace(other, toy_deployment()).digest


@given(st.data())
def test_check_and_apply_agree_on_any_point(data: st.DataObject) -> None:
    params = {knob.path: data.draw(st.sampled_from(knob.values)) for knob in SMALL.knobs}
    listed = params in SMALL.plan.points
    assert (SMALL.check(params) is None) == listed
    if listed:
        assert isinstance(SMALL.apply(params), Deployment)


TIERS, LOAD = "decode.engine.kv.tiers", "decode.engine.kv.tier_load"


def conditional() -> SearchSpace:
    return space(
        Knob(path=TIERS, values=("none", "host:1GiB"), ordinal=False),
        Knob(path=LOAD, values=("always", "faster"), ordinal=False, when={TIERS: ("host:1GiB",)}),
    )


def test_a_knob_without_effect_is_not_tried_twice() -> None:
    own = conditional()
    assert [tuple(point.values()) for point in own.plan.points] == [
        ("none", "always"), ("host:1GiB", "always"), ("host:1GiB", "faster"),
    ]  # fmt: skip
    assert own.plan.removed == {IDLE_KNOB: 1}
    rejection = own.check({TIERS: "none", LOAD: "faster"})
    assert rejection is not None
    assert rejection.reason == f"{LOAD} = faster has no effect there"


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({LOAD: ("always",)}, "no other knob"),
        ({TIERS: ("host:2GiB",)}, "it has none, host:1GiB"),
        ({TIERS: ()}, "nothing"),
    ],
)
def test_a_condition_on_what_is_not_there_is_refused(when: dict[str, tuple[Value, ...]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space(Knob(path=TIERS, values=("none", "host:1GiB")), Knob(path=LOAD, values=("always", "faster"), when=when))


def test_a_layout_is_one_knob_and_excludes_its_parts() -> None:
    own = space(Knob(path="decode.engine.layout", values=("tp1", "tp4-pp2", "tp8-ep8")))
    layouts = [own.apply(point).decode.engine.layout for point in own.plan.points]
    assert [(one.tp, one.pp, one.ep) for one in layouts] == [(1, 1, 1), (4, 2, 1), (8, 1, 8)]
    with pytest.raises(ConfigError, match="set the same thing"):
        space(Knob(path="decode.engine.layout", values=("tp1",)), Knob(path="decode.engine.layout.tp", values=(1, 2)))


DEPTH, MOST = (f"decode.engine.speculative_config.{name}" for name in ("num_speculative_tokens", "prompt_lookup_max"))


def test_a_knob_of_a_part_that_the_baseline_lacks_makes_the_part() -> None:
    space = SearchSpace(Space(knobs=(Knob(path=DEPTH, values=(None, 2, 4)),)), toy_deployment())
    assert space.baseline_params == {DEPTH: None}
    assert space.apply({DEPTH: None}) == toy_deployment()
    made = space.apply({DEPTH: 2}).decode.engine.speculative_config
    assert made == SpeculativeConfig(num_speculative_tokens=2)


def test_knobs_of_one_absent_part_are_there_together_or_not_at_all() -> None:
    """Else (none, 3) and (4, 3) would be one configuration tried twice: 4 is the default."""
    knobs = (Knob(path=DEPTH, values=(None, 2, 4)), Knob(path=MOST, values=(None, 3, 4)))
    space = SearchSpace(Space(knobs=knobs), toy_deployment())
    assert len(space.plan.points) == 1 + 2 * 2
    assert space.plan.removed == {ABSENT_PART: 2, "Input should be a valid integer": 2}
    assert len({space.apply(point).digest() for point in space.plan.points}) == 5
    with pytest.raises(ConfigError, match="means nothing there"):
        space.apply({DEPTH: None, MOST: 3})


def test_speculation_is_one_knob_with_words() -> None:
    path = "decode.engine.speculative_config"
    space = SearchSpace(Space(knobs=(Knob(path=path, values=("none", "ngram:2", "ngram:4:fixed")),)), toy_deployment())
    assert space.baseline_params == {path: "none"}
    found = space.apply({path: "ngram:4:fixed"}).decode.engine.speculative_config
    assert found is not None
    assert (found.num_speculative_tokens, found.adaptive) == (4, False)
