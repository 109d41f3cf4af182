"""The tree drawn in the module's docstring is the tree of the classes, codes included."""

from __future__ import annotations

import inspect
import re

import pytest

from energyopt.core import errors
from energyopt.core.errors import EnergyoptError, OverloadedError, RequestError, TrialError

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, EnergyoptError) and kind.__module__ == errors.__name__
}
NODE = re.compile(r"^(?P<branch>[ │├└─]*)(?P<name>\w+Error)\b(?P<rest>.*)$")


def drawn() -> dict[str, tuple[str | None, int, int]]:
    """Parent, exit code and HTTP status of each class as drawn; a code that is not drawn is the parent's."""
    tree: dict[str, tuple[str | None, int, int]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = NODE.match(line.removeprefix("    "))
        if match is None:
            continue
        del path[len(match["branch"]) // 4 :]
        parent = path[-1] if path else None
        _, exit_code, status = tree[parent] if parent else (None, 0, 0)
        code, http = re.search(r"\bexit (\d+)", match["rest"]), re.search(r"\bHTTP (\d+)", match["rest"])
        tree[match["name"]] = (parent, int(code[1]) if code else exit_code, int(http[1]) if http else status)
        path.append(match["name"])
    return tree


def test_the_drawing_is_the_tree() -> None:
    actual = {
        name: (None if kind is EnergyoptError else kind.__bases__[0].__name__, kind.exit_code, kind.http_status)
        for name, kind in CLASSES.items()
    }
    assert drawn() == actual
    assert len(actual) > 20


def test_the_message_is_the_sentence() -> None:
    assert EnergyoptError("The disk is full.").message == "The disk is full."
    refused = RequestError("n must be 1.", param="n")
    assert (refused.message, refused.param, RequestError("x").param) == ("n must be 1.", "n", None)
    assert OverloadedError("Busy.", retry_after=2.5).retry_after == 2.5


def test_failures_of_trials_are_told_apart_by_their_word() -> None:
    kinds = [kind for kind in CLASSES.values() if issubclass(kind, TrialError)]
    assert len({kind.status for kind in kinds}) == len(kinds) == 5


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_says_what_it_is(name: str) -> None:
    assert CLASSES[name].__doc__
    assert CLASSES[name].exit_code in (1, 2, 3)
