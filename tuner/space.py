"""The search space: knobs over a baseline, and the rules that remove points no engine could run.

Knows how a knob's path leads into a Deployment and which combinations are valid; knows nothing of what a point is
worth. Everything here is pure: a removed point comes with the rule that removed it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from energyopt.core.config import Deployment, describe_validation
from energyopt.core.errors import ConfigError
from energyopt.core.study import Knob, Space, Value

from .paths import knob_paths, optional_part, read_path, with_path

Params = Mapping[str, Value]
"""One point: a value for every knob, by path."""

MAX_POINTS = 200_000
"""Largest space that is enumerated; a bigger one is refused rather than sampled blindly."""

_NUMBER = re.compile(r"\s*(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")


@dataclass(frozen=True, slots=True)
class Rule:
    """A named constraint: ``check`` returns why a deployment cannot be run, or None."""

    name: str
    check: Callable[[Deployment], str | None]


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a point is not in the space: the rule that removed it, and a sentence about this point."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class SpacePlan:
    """The valid points in the space's order, as values and as positions, and how many points each rule removed."""

    points: tuple[Params, ...]
    indices: tuple[tuple[int, ...], ...]
    removed: Mapping[str, int]

    @property
    def total(self) -> int:
        """Points before the rules."""
        return len(self.points) + sum(self.removed.values())


def _one_power_setting(deployment: Deployment) -> str | None:
    if deployment.prefill is not None and deployment.prefill.power != deployment.decode.power:
        return "the prefill pool and the decode pool ask for different power limits on the same host"
    return None


IDLE_KNOB = "a knob without effect keeps the baseline's value"
"""Rule of the points that differ from another one only in a knob whose condition does not hold."""

ABSENT_PART = "a part that a deployment may lack is there as a whole or not at all"
"""Rule of the points in which knobs of one part do not agree on whether it is there."""

DEFAULT_RULES = (Rule("one power setting for all pools of a host", _one_power_setting),)


def at_most_devices(count: int) -> Rule:
    """The rule that a deployment fits on ``count`` devices."""

    def check(deployment: Deployment) -> str | None:
        return f"needs {deployment.devices} devices, there are {count}" if deployment.devices > count else None

    return Rule(f"at most {count} devices", check)


class SearchSpace:
    """A Space applied to a baseline.

    Raises ConfigError for an unknown path, a knob twice, a value twice, or a baseline value that its knob lacks: the
    baseline is always a point of the space, so that a search can learn from it.
    """

    def __init__(self, space: Space, baseline: Deployment, rules: Sequence[Rule] = DEFAULT_RULES) -> None:
        self._space = space
        self._rules = tuple(rules)
        self._template = baseline.model_dump()
        self._loose = tuple(k.path for k in space.knobs if optional_part(k.path) not in (None, "prefill"))
        self._check_paths(baseline)
        self.baseline_params: Params = {knob.path: read_path(self._template, knob.path) for knob in space.knobs}
        self._check_values()

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return self._space.knobs

    @property
    def digest(self) -> str:
        """Names the space: knobs and their values, in order. Results of another digest are another space's."""
        return self._space.digest()

    def apply(self, params: Params) -> Deployment:
        """The baseline with ``params`` put in. Raises ConfigError with the rule that forbids the point."""
        self.index(params)
        found = self._build(params)
        if isinstance(found, Rejection):
            raise ConfigError(f"{_words(params)} is not a valid configuration: {found.reason}.")
        return found

    def check(self, params: Params) -> Rejection | None:
        """Why ``params`` cannot be run, or None if it can. Raises ConfigError if it is no point of this space."""
        self.index(params)
        found = self._build(params)
        return found if isinstance(found, Rejection) else None

    def index(self, params: Params) -> tuple[int, ...]:
        """The position of each knob's value. Raises ConfigError naming the first knob that does not fit."""
        unknown = sorted(set(params) - {knob.path for knob in self.knobs})
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is no knob of this space: {_listing(k.path for k in self.knobs)}.")
        return tuple(_position(knob, params) for knob in self.knobs)

    def at(self, index: Sequence[int]) -> Params:
        """The point whose values stand at these positions: the inverse of ``index``."""
        return {knob.path: knob.values[i] for knob, i in zip(self.knobs, index, strict=True)}

    @cached_property
    def plan(self) -> SpacePlan:
        """All valid points, enumerated once. Raises ConfigError if there are none, or too many to list."""
        if self._space.size > MAX_POINTS:
            raise ConfigError(f"The space has {self._space.size} points; at most {MAX_POINTS} are searched.")
        points: list[Params] = []
        indices: list[tuple[int, ...]] = []
        removed: Counter[str] = Counter()
        for index in itertools.product(*(range(len(knob.values)) for knob in self.knobs)):
            params = self.at(index)
            found = self._build(params)
            if isinstance(found, Rejection):
                removed[found.rule] += 1
            else:
                points.append(params)
                indices.append(index)
        if not points:
            raise ConfigError(f"No point of the space is valid; removed by: {_listing(removed)}.")
        return SpacePlan(tuple(points), tuple(indices), dict(removed))

    def _build(self, params: Params) -> Deployment | Rejection:
        idle = next((knob for knob in self.knobs if not _acts(knob, params) and self._moved(knob, params)), None)
        if idle is not None:
            return Rejection(IDLE_KNOB, f"{idle.path} = {params[idle.path]} has no effect there")
        data = self._template
        for path, value in params.items():
            data = with_path(data, path, value)
        try:
            deployment = Deployment.model_validate(data)
        except ValidationError as error:
            reason = describe_validation(Deployment, error).removesuffix(".")
            first = error.errors(include_url=False)[0]
            return Rejection(_NUMBER.sub("", first["msg"].removeprefix("Value error, ")), reason)
        lost = self._lost(deployment, params) if self._loose else None
        if lost is not None:
            return Rejection(ABSENT_PART, f"{lost} = {params[lost]} means nothing there")
        for rule in self._rules:
            reason_or_none = rule.check(deployment)
            if reason_or_none is not None:
                return Rejection(rule.name, reason_or_none)
        return deployment

    def _lost(self, deployment: Deployment, params: Params) -> str | None:
        """The first knob of an optional part that the deployment does not say again."""
        dumped = deployment.model_dump()
        return next((p for p in self._loose if _key(read_path(dumped, p)) != _key(params[p])), None)

    def _moved(self, knob: Knob, params: Params) -> bool:
        return _key(params[knob.path]) != _key(self.baseline_params[knob.path])

    def _check_paths(self, baseline: Deployment) -> None:
        known = knob_paths()
        seen: set[str] = set()
        for knob in self.knobs:
            if knob.path not in known:
                raise ConfigError(f"{knob.path!r} is no knob of a deployment: allowed are {_listing(known)}.")
            if knob.path in seen:
                raise ConfigError(f"The knob {knob.path!r} is given twice; each may be given once.")
            if knob.path.startswith("prefill.") and baseline.prefill is None:
                raise ConfigError(f"{knob.path!r}: the baseline has no prefill pool; only decode.* can be tuned.")
            whole = next((other for other in seen if f"{knob.path}.".startswith(f"{other}.")), None)
            parts = next((other for other in seen if other.startswith(f"{knob.path}.")), None)
            if whole or parts:
                raise ConfigError(f"The knobs {whole or parts!r} and {knob.path!r} set the same thing; leave one out.")
            seen.add(knob.path)

    def _check_values(self) -> None:
        for knob in self.knobs:
            self._check_conditions(knob)
            for value in knob.values:
                with_path(self._template, knob.path, value)  # a word that its kind does not understand is raised here
            if len({_key(value) for value in knob.values}) < len(knob.values):
                raise ConfigError(f"The knob {knob.path!r} has a value twice: {_listing(knob.values)}.")
            if _find(knob, self.baseline_params[knob.path]) is None:
                raise ConfigError(
                    f"The knob {knob.path!r} lacks the baseline's value {self.baseline_params[knob.path]!r}: "
                    f"it has {_listing(knob.values)}."
                )

    def _check_conditions(self, knob: Knob) -> None:
        others = {other.path: other for other in self.knobs if other.path != knob.path}
        for path, values in knob.when.items():
            if path not in others:
                raise ConfigError(f"{knob.path} depends on {path!r}, which is no other knob of this space.")
            unknown = [value for value in values if _find(others[path], value) is None]
            if unknown or not values:
                wanted = unknown[0] if unknown else "nothing"
                raise ConfigError(
                    f"{knob.path} depends on {path} = {wanted!r}: it has {_listing(others[path].values)}."
                )


def _acts(knob: Knob, params: Params) -> bool:
    """Whether the knob's conditions hold at this point."""
    return all(any(_key(params[path]) == _key(v) for v in values) for path, values in knob.when.items())


def _position(knob: Knob, params: Params) -> int:
    if knob.path not in params:
        raise ConfigError(f"The point lacks a value for the knob {knob.path!r}.")
    found = _find(knob, params[knob.path])
    if found is None:
        raise ConfigError(f"{knob.path} = {params[knob.path]!r} is not in the space: it has {_listing(knob.values)}.")
    return found


def _find(knob: Knob, value: Value) -> int | None:
    wanted = _key(value)
    return next((i for i, own in enumerate(knob.values) if _key(own) == wanted), None)


def _key(value: Value) -> tuple[bool, Value]:
    """``True`` equals 1 in Python; here they are two values."""
    return isinstance(value, bool), value


def _words(params: Params) -> str:
    return ", ".join(f"{path} = {value}" for path, value in params.items())


def _listing(values: Iterator[Any] | Sequence[Any] | Mapping[str, Any]) -> str:
    return ", ".join(str(value) for value in values)
