"""The verbs and where each lives. Only the module of the verb that was asked for is imported.

torch alone takes seconds to import; ``energyopt --help`` and ``energyopt studies list`` need none of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import typer


@dataclass(frozen=True, slots=True)
class Verb:
    """``words`` as typed; ``function`` in ``module`` carries it out; ``help`` is what the list of verbs says."""

    words: tuple[str, ...]
    module: str
    function: str
    help: str

    def load(self) -> Callable[..., None]:
        function: Callable[..., None] = getattr(importlib.import_module(self.module), self.function)
        return function


VERBS = (
    Verb(("tune",), "energyopt.cli.tune", "tune", "Find and verify the best configuration for an SLO."),
    Verb(("serve",), "energyopt.cli.serve", "serve", "Serve a model over HTTP, with joules in every reply."),
    Verb(("router",), "energyopt.cli.router", "router", "One address before several engines, by cache and load."),
    Verb(("measure",), "energyopt.cli.measure", "measure", "Joules, watts and time of any command."),
    Verb(("cap", "show"), "energyopt.cli.cap", "show", "Power limits of each GPU, and who holds it."),
    Verb(("cap", "set"), "energyopt.cli.cap", "set_cap", "Cap GPUs for a time; what was found comes back."),
    Verb(("cap", "clear"), "energyopt.cli.cap", "clear", "End caps now and put back what was found."),
    Verb(("power-helper",), "energyopt.cli.power_helper", "power_helper", "Set limits for others; runs as root."),
    Verb(("agent",), "energyopt.cli.agent", "agent", "Measure this host's GPUs and CPUs and serve /metrics."),
    Verb(("watch",), "energyopt.cli.watch", "watch", "Power and energy of every device, live in the terminal."),
    Verb(("bench",), "energyopt.cli.bench", "bench", "Measure a server under a workload: latency, hits, joules."),
    Verb(("verify",), "energyopt.cli.verify", "verify", "Check that a configuration still gives the right answers."),
    Verb(("api",), "energyopt.cli.api", "api", "Serve tuning jobs over HTTP, with workers beside it."),
    Verb(("worker",), "energyopt.cli.worker", "worker", "Run the studies that were submitted to a service."),
    Verb(("keys", "create"), "energyopt.cli.keys", "create", "Make a key for the service; it is shown once."),
    Verb(("keys", "list"), "energyopt.cli.keys", "list_all", "Keys, without their secrets."),
    Verb(("keys", "revoke"), "energyopt.cli.keys", "revoke", "Take a key back at once."),
    Verb(("db", "upgrade"), "energyopt.cli.db", "upgrade", "Bring a database to this version."),
    Verb(("db", "backup"), "energyopt.cli.db", "backup", "Copy a database file while others write to it."),
    Verb(("doctor",), "energyopt.cli.doctor", "doctor", "Say what works on this machine and why not."),
    Verb(("kernels", "tune"), "energyopt.cli.kernels", "tune", "Measure kernel launches on this GPU: joules and time."),
    Verb(("kernels", "check"), "energyopt.cli.kernels", "check", "Error and share of the roofline of every kernel."),
    Verb(("plan",), "energyopt.cli.plan", "plan", "Plan a deployment on GPUs that need not exist yet (simulated)."),
    Verb(("calibrate",), "energyopt.cli.calibrate", "calibrate", "Fit the simulator to measured runs of your own."),
    Verb(("accuracy", "mlenergy"), "energyopt.cli.accuracy", "mlenergy", "Errors on a table of J/token and tok/s."),
    Verb(("accuracy", "cap-sweep"), "energyopt.cli.accuracy", "cap_sweep", "Errors on a power-cap sweep."),
    Verb(("accuracy", "study"), "energyopt.cli.accuracy", "study", "Predicted against measured of a study's trials."),
    Verb(("accuracy", "page"), "energyopt.cli.accuracy", "page", "Write the page of all errors."),
    Verb(("workload", "describe"), "energyopt.cli.workload", "describe", "What a recorded workload is like."),
    Verb(("workload", "cache-curve"), "energyopt.cli.cache_curve", "cache_curve", "How much cache a trace needs."),
    Verb(("study", "validate"), "energyopt.cli.study", "validate", "Check a study file and show what it would do."),
    Verb(("study", "schema"), "energyopt.cli.study", "schema", "The JSON schema of study files."),
    Verb(("study", "revise"), "energyopt.cli.study", "revise_study", "Change a study's space; its trials are kept."),
    Verb(("studies", "list"), "energyopt.cli.studies", "list_studies", "The newest studies."),
    Verb(("studies", "show"), "energyopt.cli.studies", "show", "One study: result, plot and every trial."),
    Verb(("studies", "export"), "energyopt.cli.export", "export", "The winner for vLLM, SGLang, Kubernetes ..."),
    Verb(("studies", "resume"), "energyopt.cli.resume", "resume", "Go on with an interrupted or killed study."),
    Verb(
        ("dashboards", "export"), "energyopt.cli.dashboards", "export", "Provisioning files for Grafana and Prometheus."
    ),
    Verb(("dashboards", "apply"), "energyopt.cli.dashboards", "apply", "Send boards, sources and alerts to a Grafana."),
    Verb(("dashboards", "lint"), "energyopt.cli.dashboards_lint", "lint", "Check queries, units and layout of boards."),
)

GROUPS = {
    "keys": "Who may use the service.",
    "db": "The database of studies, energy and keys.",
    "kernels": "The operators that compute on this machine's GPU.",
    "cap": "Power limits of this machine's GPUs.",
    "workload": "Recorded and generated workloads.",
    "study": "Study files and revisions.",
    "studies": "Studies in the database.",
    "accuracy": "How far the simulator is from published measurements.",
    "dashboards": "Grafana boards and Prometheus rules.",
}


def add_verbs(app: typer.Typer, arguments: Sequence[str]) -> None:
    """Register every verb on ``app``: the one that ``arguments`` ask for in full, the others by name and help only."""
    asked = tuple(word for word in arguments if not word.startswith("-"))
    groups: dict[str, typer.Typer] = {}
    for verb in VERBS:
        parent = app
        if len(verb.words) == 2:
            name = verb.words[0]
            parent = groups[name] = groups.get(name) or _group(app, name)
        wanted = asked[: len(verb.words)] == verb.words
        parent.command(verb.words[-1], help=verb.help)(verb.load() if wanted else _not_asked)


def _group(app: typer.Typer, name: str) -> typer.Typer:
    group = typer.Typer(help=GROUPS[name], no_args_is_help=True)
    app.add_typer(group, name=name)
    return group


def _not_asked() -> None:
    """Stands for a verb in the list of verbs; it is never called."""
