"""Calibration: it finds what made the runs, says how well it does on others, and refuses what is no table."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import pytest

from energyopt.compose.calibrate import CalibrationRequest, calibrate_csv, write_constants
from energyopt.core.config import Deployment, EngineConfig, ParallelLayout, PoolConfig
from energyopt.core.errors import ConfigError
from energyopt.core.results import EnergyReading, Scope, Source, total_energy
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Joules, Seconds
from tuner.evaluators.simulated import SimulatedEvaluator
from tuner.simulator.calibration import Observation, calibrate, fit_observations
from tuner.simulator.constants import Constants, load_constants
from tuner.simulator.hardware import load_gpu
from tuner.simulator.machine import Machine
from tuner.simulator.mlenergy import read_table
from tuner.simulator.models import load_model_spec
from tuner.simulator.observations import COLUMNS, from_csv, metrics_of
from tuner.simulator.steady import Lengths, aggregated
from tuner.workload.chat import chat_workload

GPU = load_gpu("h200")
PRIOR = load_constants(GPU, moe=False)


def changed(constants: Constants = PRIOR) -> Constants:
    """Another machine: slower memory, a heavier host, more watts."""
    time, power = constants.time, constants.power
    return constants.model_copy(
        update={
            "time": time.model_copy(update={"memory": 0.6, "step": 4e-3, "layer": 6e-5}),
            "power": power.model_copy(update={"busy": 0.35, "byte": 1.5e-10}),
        }
    )


def table(path: Path, truth: Constants, batches: tuple[int, ...]) -> Path:
    """What a machine with these constants would have measured."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "watts_per_gpu", "tpot_ms"])
        for model in ("llama-3.1-8b", "qwen3-14b"):
            machine = Machine(load_model_spec(model), GPU, ParallelLayout(), truth)
            for batch in batches:
                steady = aggregated(machine, Lengths(500, 200), batch, 8192)
                row = [model, 1, batch, 500, 200, steady.rate, steady.watts, 1e3 * steady.iteration]
                writer.writerow(row)
    return path


def test_a_changed_machine_is_found_from_its_runs(tmp_path: Path) -> None:
    path = table(tmp_path / "runs.csv", changed(), (1, 8, 32, 128))
    found = calibrate_csv(CalibrationRequest("h200"), path)
    before = {one.name: one.errors(PRIOR) for one in from_csv(path, GPU)}
    assert max(abs(errors["tok_s"]) for errors in before.values()) > 0.3
    for metric in ("tok_s", "watts", "tpot"):
        assert found.fitted[metric][0] < 0.04
        assert found.held_out[metric][0] < 0.08
    assert found.constants.origin == "fitted"
    assert "8 runs of runs.csv (sha256" in found.constants.provenance
    out = tmp_path / "new" / "constants.json"
    write_constants(found, out)
    assert load_constants(GPU, moe=False, path=str(out)) == found.constants
    assert 0 < found.constants.error < 0.1


def test_two_rows_a_series_bring_a_model_with_experts_near(tables: Path) -> None:
    """Zero-shot constants of B200, corrected by the first and the last row of one series, on the rows between."""
    cases = read_table(tables / "mlenergy_v3_llm.csv").cases
    name = "b200 chat Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 x2 tp2 ep2"
    series = sorted((case for case in cases if case.series == name), key=lambda case: case.batch)
    gpu = series[0].gpu
    rows = {f"{name} b{case.max_num_seqs}" for case in series}
    own = [one for one in from_csv(tables / "mlenergy_v3_llm.csv", gpu) if one.name in rows]
    own.sort(key=lambda one: int(one.name.rsplit("b", 1)[1]))
    start = load_constants(gpu, moe=True)
    found = calibrate([own[0], own[-1]], start, provenance="two rows").constants

    def joules(constants: Constants) -> float:
        errors = [one.errors(constants) for one in own[1:-1]]
        return sum(abs((1 + e["watts"]) / (1 + e["tok_s"]) - 1) for e in errors) / len(errors)

    assert joules(found) < 0.12 < joules(start)


def test_runs_of_a_study_are_replayed_through_the_scheduler() -> None:
    model, load = "llama-3.1-8b", chat_workload(seed=1, concurrency=6, sessions=12)
    plan = MeasurePlan(warmup=Seconds(0.3), window=Seconds(1.0))

    def observed(seats: int) -> Observation:
        one = Deployment(decode=PoolConfig(engine=EngineConfig(model=model, max_num_seqs=seats)))

        def run(constants: Constants) -> dict[str, float]:
            evaluator = SimulatedEvaluator("h200", model=model, constants=constants)
            return metrics_of(evaluator.run(one, load, plan, (), lambda progress: None))

        return Observation(str(seats), run(changed()), run)

    known, unknown = [observed(1), observed(6)], observed(3)
    assert {"tok_s", "ttft_p90", "tpot", "watts"} == set(unknown.measured)
    found = fit_observations(known, PRIOR)
    assert abs(unknown.errors(found)["tok_s"]) < 0.03 < abs(unknown.errors(PRIOR)["tok_s"])


def test_estimated_joules_are_no_measurement() -> None:
    load = chat_workload(seed=1, concurrency=2, sessions=4)
    plan = MeasurePlan(warmup=Seconds(0.2), window=Seconds(1.0))
    one = Deployment(decode=PoolConfig(engine=EngineConfig(model="llama-3.1-8b")))
    result = SimulatedEvaluator("h200").run(one, load, plan, (), lambda progress: None)
    reading = EnergyReading(
        device="cpu",
        joules=Joules(50.0),
        error=Joules(20.0),
        scope=Scope.GPU,
        source=Source.ESTIMATED,
        window=Seconds(1.0),
    )
    guessed = result.model_copy(update={"readings": (reading,), "energy": total_energy([reading])})
    assert "watts" in metrics_of(result)
    assert "watts" not in metrics_of(guessed)


def test_what_is_no_table_of_runs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    refused = partial(calibrate_csv, CalibrationRequest("h200"))
    path.write_text("model,tp\nllama-3.1-8b,1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no column 'batch'"):
        refused(path)
    path.write_text(f"{','.join(COLUMNS)}\nllama-3.1-8b,1,8,500,200,100\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="1 runs cannot calibrate"):
        refused(path)
    path.write_text(f"{','.join(COLUMNS)}\nllama-3.1-8b,one,8,500,200,100\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not a number"):
        refused(path)
    path.write_text(f"{','.join(COLUMNS)},precision\nllama-3.1-8b,1,8,500,200,100,fp7\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="'fp7' is not a precision"):
        refused(path)
