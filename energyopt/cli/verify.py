"""``energyopt verify``: whether a configuration still gives the baseline's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from energyopt.compose.verify import (
    Questions,
    answers_of,
    compare_answers,
    keep_report,
    rounding_check,
    save_answers,
    thresholds_of,
)
from energyopt.core.units import format_figure
from tuner.accuracy.checks import AccuracyReport

from .output import message_console, print_json, result_console

_WORDS = {True: "passed", False: "FAILED", None: "—"}


def verify(
    target: Annotated[str, typer.Argument(help="Candidate: address of a server, or a model to serve.")],
    baseline: Annotated[
        str | None, typer.Option(help="What it must agree with: address, model, or a recording (*.json).")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the candidate's answers as a later baseline.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Option of `serve` for the candidate, such as --option=--dtype=bfloat16."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model; default: the server's first.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="ENERGYOPT_API_KEY", help="Sent to the servers.")] = None,
    prompts: Annotated[int, typer.Option(min=1, max=12, help="Plain questions.")] = 12,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each plain answer.")] = 48,
    words: Annotated[int, typer.Option(min=10, help="Length of the text in which numbers are hidden.")] = 400,
    agreement: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of greedy tokens that must agree.")
    ] = None,
    logprob: Annotated[float | None, typer.Option(min=0, help="Nats that log-probabilities may differ.")] = None,
    f1: Annotated[float | None, typer.Option(min=0, max=1, help="F1 of the decision to call a tool.")] = None,
    recall_drop: Annotated[float | None, typer.Option(min=0, max=1, help="Share of needles that may be lost.")] = None,
    db: Annotated[str | None, typer.Option("--db", help="Database: a path or URL.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Ask candidate and baseline the same and compare. Exit code 1 if a check failed."""
    if baseline is None and save is None:
        raise typer.BadParameter("give --baseline to compare with, or --save to make a baseline of this one")
    limits = thresholds_of({"agreement": agreement, "logprob": logprob, "f1": f1, "recall_drop": recall_drop})
    questions, console = Questions(prompts, tokens, words), message_console()
    with console.status(f"asking {target}"):
        found = answers_of(target, questions, model=model, api_key=api_key, options=tuple(option or ()))
    if save is not None:
        save_answers(found, save)
        console.print(f"answers kept in {save}", markup=False)
    if baseline is None:
        return
    with console.status(f"asking {baseline}"):
        old = answers_of(baseline, questions, model=model, api_key=api_key)
    report = compare_answers(old, found, limits)
    with console.status(f"comparing the weights of {target} with float32"):
        rounding = rounding_check(target, tuple(option or ()))
    if rounding is not None:
        report = report.model_copy(update={"checks": (*report.checks, rounding)})
    stored, url = keep_report(report, db)
    if as_json:
        print_json(
            {**report.model_dump(mode="json"), "passed": report.passed, "stored": {"id": stored, "database": url}}
        )
    else:
        result_console().print(table(report))
        result_console().print(f"stored: run {stored} in {url}", markup=False, soft_wrap=True)
    if not report.passed:
        console.print(f"[bold red]not accurate enough:[/] {report.reason or 'no check applied'}")
        raise typer.Exit(1)


def table(report: AccuracyReport) -> Table:
    """One row a check."""
    made = Table(title=f"{report.candidate} against {report.baseline}", title_justify="left", box=SIMPLE_HEAD)
    for name in ("check", "score", "limit", ""):
        made.add_column(name, no_wrap=True)
    made.add_column("seen", overflow="fold")
    for check in report.checks:
        figures = (format_figure(check.score), format_figure(check.limit))
        made.add_row(check.name, *figures, _WORDS[check.passed], escape(check.detail))
    return made
