"""The 48 public bug reports about energy and power that the project's notes list, and where each is tested."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SENSORS, LIMITS, SHARES = "test_reports.py", "control/test_reports.py", "test_accounting_reports.py"
REPORTS: Mapping[int, tuple[str, ...]] = {
    1: (f"{SENSORS}::test_01_zeus_261_the_inferred_period_is_never_zero",),
    2: (f"{SENSORS}::test_02_zeus_181_two_paths_one_source_and_the_ratio_is_told",),
    3: (f"{SENSORS}::test_03_04_zeus_242_172_linked_chips_are_probed_for_their_scope",),
    4: (f"{SENSORS}::test_03_04_zeus_242_172_linked_chips_are_probed_for_their_scope",),
    5: (f"{LIMITS}::test_05_zeus_254_an_amd_clock_reset_means_automatic_clocks",),
    6: (f"{SENSORS}::test_06_zeus_45_dcgm_157_an_average_is_called_one",),
    7: (f"{SENSORS}::test_07_amdsmi_38_a_wrong_rate_is_found_while_running",),
    8: (f"{SENSORS}::test_08_amdsmi_115_a_counter_that_jumps_back_and_returns_is_held",),
    9: (f"{SENSORS}::test_09_rocm_smi_180_a_counter_that_stands_still_is_replaced_by_power",),
    10: ("test_amd.py::test_a_second_die_that_tells_nothing_is_unavailable_and_the_first_stays",),
    11: (f"{LIMITS}::test_11_amdsmi_139_the_cap_is_that_of_sensor_0_in_microwatts",),
    12: (f"{SENSORS}::test_12_rocm_systems_6654_an_accumulator_is_no_energy_without_its_resolution",),
    13: (f"{SENSORS}::test_13_14_15_16_power_under_any_name_and_no_sentinel",),
    14: (f"{SENSORS}::test_13_14_15_16_power_under_any_name_and_no_sentinel",),
    15: (f"{SENSORS}::test_13_14_15_16_power_under_any_name_and_no_sentinel",),
    16: (f"{SENSORS}::test_13_14_15_16_power_under_any_name_and_no_sentinel",),
    17: (
        f"{SENSORS}::test_17_legacy_rocm_build_4750_partitions_have_one_sensor",
        "test_names.py::test_a_partitioned_amd_gpu_has_many_numbers_and_one_name",
    ),
    18: (
        f"{SENSORS}::test_18_mxgpu_26_a_range_of_all_ones_is_no_range",
        f"{LIMITS}::test_18_amd_boards_that_refuse_a_cap_are_read_only_with_the_reason",
    ),
    19: (f"{LIMITS}::test_19_rocm_systems_8458_the_memory_clock_survives_a_core_clock_and_0_watts_is_no_cap",),
    20: (f"{SENSORS}::test_20_21_dcgm_exporter_257_561_slices_have_one_series_and_the_parent_stays",),
    21: (f"{SENSORS}::test_20_21_dcgm_exporter_257_561_slices_have_one_series_and_the_parent_stays",),
    22: (f"{SENSORS}::test_22_dcgm_exporter_417_a_counter_never_decreases",),
    23: (
        "../dashboards/test_lint.py::test_a_planted_fault_is_found",
        "../dashboards/test_deploy.py::test_watts_that_two_processes_read_count_once",
    ),
    24: (f"{SENSORS}::test_24_25_slurm_job_exporter_30_dcgm_exporter_700_blanks_are_absent",),
    25: (f"{SENSORS}::test_24_25_slurm_job_exporter_30_dcgm_exporter_700_blanks_are_absent",),
    26: (f"{SENSORS}::test_26_27_codecarbon_309_1309_a_wrap_has_the_size_of_its_range",),
    27: (f"{SENSORS}::test_26_27_codecarbon_309_1309_a_wrap_has_the_size_of_its_range",),
    28: (
        f"{SENSORS}::test_28_codecarbon_117_energy_is_not_a_short_samples_power",
        f"{SHARES}::test_codecarbon_117_a_window_is_the_counters_difference_not_one_short_sample",
    ),
    29: (
        f"{SENSORS}::test_29_codecarbon_1316_without_a_counter_power_is_integrated",
        f"{SHARES}::test_codecarbon_1316_without_a_counter_energy_is_unknown_not_zero",
    ),
    30: (
        f"{SENSORS}::test_30_codecarbon_567_873_518_only_the_visible_gpus_and_slices_too",
        f"{SHARES}::test_codecarbon_567_gpus_that_ran_nothing_of_ours_are_not_counted",
    ),
    31: (
        f"{SENSORS}::test_31_36_kepler_897_nvtop_409_no_petajoules",
        f"{SHARES}::test_kepler_897_no_part_exceeds_the_whole",
    ),
    32: (
        "test_attribute.py::test_over_any_window_the_parts_sum_to_the_sensor",
        "test_ledger.py::test_the_account_equals_the_sensor_in_any_order_of_events",
        "test_desk.py::test_an_account_kept_beside_the_engine_sums_to_the_sensor_whenever_it_is_read",
    ),
    33: ("test_attribute.py::test_parts_are_prefill_decode_idle_and_overhead",),
    34: (
        f"{SHARES}::test_sglang_27567_what_an_idle_context_draws_is_shown_and_no_requests",
        "test_accounts.py::test_over_all_owners_the_book_equals_the_sensor",
    ),
    35: (
        f"{SENSORS}::test_35_nvidia_container_toolkit_48_a_dead_driver_shows_as_down_and_comes_back",
        f"{LIMITS}::test_35_nvidia_container_toolkit_48_limits_work_again_after_an_unknown_error",
    ),
    36: (f"{SENSORS}::test_31_36_kepler_897_nvtop_409_no_petajoules",),
    37: (
        f"{SENSORS}::test_37_nomad_device_nvidia_118_milliwatts_are_not_watts",
        f"{LIMITS}::test_37_nomad_device_nvidia_118_milliwatts_are_never_taken_for_watts",
    ),
    38: (
        f"{SENSORS}::test_38_aiconfigurator_1534_the_right_board_is_measured",
        f"{LIMITS}::test_38_pynvml_28_the_board_is_found_by_uuid_and_not_by_index",
    ),
    39: (
        f"{SENSORS}::test_39_nviwatch_28_one_card_that_cannot_does_not_stop_the_others",
        f"{LIMITS}::test_39_nviwatch_28_one_card_without_limits_leaves_the_others_usable",
    ),
    40: (f"{SENSORS}::test_40_gpustat_76_the_sensors_own_pace_is_found",),
    41: (f"{SENSORS}::test_41_rlinf_1507_this_process_never_loads_the_amd_library",),
    42: (f"{LIMITS}::test_42_club_3090_699_the_operators_cap_comes_back_and_not_the_default",),
    43: (f"{LIMITS}::test_43_nvidia_pstated_1_no_signal_leaves_a_gpu_slow",),
    44: (f"{LIMITS}::test_44_nv_gpu_powerlimit_setup_1_a_limit_lost_with_the_driver_is_set_again",),
    45: (f"{LIMITS}::test_45_lact_207_and_1079_a_cap_stays_above_a_floor_and_its_range_is_read_each_time",),
    46: (
        f"{SENSORS}::test_46_srt_slurm_481_a_domain_is_named_and_a_rail_is_no_socket",
        f"{SHARES}::test_srt_slurm_481_a_rail_is_not_called_the_whole_socket",
    ),
    47: (f"{SHARES}::test_mblt_model_zoo_71_tokens_per_joule_counts_the_tokens_of_all_requests",),
    48: (f"{SHARES}::test_d_inference_382_tokens_and_joules_of_a_ratio_are_of_the_same_window",),
}
"""Number of the report -> its tests, by file relative to this one's folder."""


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


@pytest.mark.parametrize("number", range(1, 49))
def test_the_report_has_its_tests(number: int) -> None:
    assert REPORTS[number]
    for test in REPORTS[number]:
        file, _, name = test.partition("::")
        assert name in names_in((HERE / file).resolve()), f"{test} is gone: report {number} needs another"
