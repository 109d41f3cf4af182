"""Public bug reports about prefix caches and offload, and the test that each of them is here.

The list is §10 of the project's notes on serving systems; it is held complete against them where they are at hand.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NOTES = ROOT.parent / "shared/reference/serving.md"

GROUPS, WAITING, ROBUST = "test_groups.py", "test_waiting_for_tiers.py", "test_robustness.py"
CACHE: Mapping[str, tuple[str, ...]] = {
    "#42948": (f"{GROUPS}::test_window_churn_flushes_nothing", "../test_blocks.py::PoolModel"),
    "#48435": (f"{GROUPS}::test_sessions_in_turn_below_capacity_keep_their_windows",),
    "#45238": (f"{GROUPS}::test_a_shared_prefix_is_hit_by_the_third_request",),
    "#57610": (
        f"{GROUPS}::test_divergence_at_every_offset_hits_the_blocks_before_it",
        "test_round_trip.py::test_divergence_at_every_offset_of_a_block",
        f"{WAITING}::test_a_reloaded_prefix_is_the_one_that_was_stored",
    ),
    "#51771/#51041": (f"{GROUPS}::test_speculation_and_retention_agree",),
    "#43587/#43628": (f"{GROUPS}::test_later_hits_do_not_depend_on_the_chunks_of_a_prefill",),
    "#54094": (f"{GROUPS}::test_a_prompt_of_the_whole_context_is_hit",),
    "#55600": (f"{GROUPS}::test_every_group_uses_its_own_block_size",),
    "#33775": (f"{GROUPS}::test_all_hits_are_taken_before_anything_is_allocated",),
    "#39734": (f"{GROUPS}::test_a_window_needs_no_room_for_the_whole_prompt",),
    "#32802": (
        f"{GROUPS}::test_the_speculative_drop_is_taken_once",
        "test_lookup.py::test_the_speculative_drop_costs_at_most_one_grain_of_what_attention_knows",
    ),
    "#45704/#46278": (
        f"{WAITING}::test_a_finished_request_leaves_its_blocks_to_the_store",
        f"{ROBUST}::test_a_thousand_prompts_through_small_tiers",
    ),
    "#47282": (
        "test_tiers.py::test_a_block_under_a_load_is_neither_evicted_nor_overwritten",
        f"{WAITING}::test_an_abort_during_a_load_leaves_the_blocks_to_the_copy",
    ),
    "#45388/#45387": (f"{WAITING}::test_something_always_finishes_under_memory_pressure",),
    "#46014": (
        f"{WAITING}::test_a_preempted_request_may_load_what_it_lost",
        f"{ROBUST}::test_preemption_while_blocks_are_loaded_and_stored",
    ),
    "#31210/#26329": (
        f"{GROUPS}::test_answers_do_not_depend_on_the_cache",
        f"{ROBUST}::test_a_thousand_prompts_through_small_tiers",
    ),
    "#49250": (f"{WAITING}::test_a_failed_load_is_computed", f"{ROBUST}::test_every_second_load_fails"),
    "local-inference-lab#191": (
        f"{ROBUST}::test_one_failed_load_and_no_other_traffic",
        "../test_front_tiers.py::test_a_failed_load_wakes_an_idle_engine",
    ),
    "asc#7871": (f"{WAITING}::test_counters_only_grow", f"{ROBUST}::test_requests_aborted_while_they_load"),
    "#50359": (f"{GROUPS}::test_a_hit_may_end_inside_a_block",),
    "asc#13750, asc#16270": ("../../compose/test_service.py::test_the_effective_prefix_cache_is_described",),
    "LMCache#2136/#2979": (
        "../test_hashing.py::test_the_same_in_other_processes_whatever_their_hash_seed",
        "test_shared_pool.py::test_engines_hit_each_others_prefixes_and_outlive_each_other",
    ),
    "#44490": (f"{WAITING}::test_memory_is_flat_over_many_requests", f"{ROBUST}::test_host_memory_does_not_grow"),
    "#51198": ("../../telemetry/test_exporter.py::test_the_effective_cache_settings_are_visible",),
}
"""Report -> tests, by file relative to this one's folder."""
NOT_THE_CACHE: Mapping[str, str] = {
    "#49238": "a hand-over's peer that dies",
    "#26896": "a hand-over's parameters",
    "#43523/#42895": "layouts of two engines that hand over",
    "#42898": "accuracy of a hand-over",
    "#48221/#54926/#46694": "drafts and hand-overs",
    "#41623/#46145": "context parallelism",
    "#52463": "routing between replicas",
    "#38488, R#194, R#275, R#298": "fields that a proxy passes through",
    "production-stack#990": "routing by prefix",
}


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions and classes at the top of a test file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


@pytest.mark.parametrize("report", CACHE)
def test_the_report_has_its_tests(report: str) -> None:
    for test in CACHE[report]:
        file, _, name = test.partition("::")
        path = Path(__file__).parent / file
        assert name in names_in(path.resolve()), f"{test} is gone: {report} needs another"


def test_no_report_of_the_notes_is_left_out() -> None:
    if not NOTES.is_file():
        pytest.skip("the notes on serving systems are not beside this repository")
    section = NOTES.read_text(encoding="utf-8").partition("\n## 10.")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]*#[^|]*?) \|", section, re.MULTILINE)
    listed = [row for row in rows if re.search(r"#\d|R#", row)]
    assert len(listed) == len(set(listed)) > 30
    assert set(listed) == set(CACHE) | set(NOT_THE_CACHE)
