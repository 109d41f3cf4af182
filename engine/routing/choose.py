"""Policies by name."""

from __future__ import annotations

from typing import Literal, get_args

from energyopt.core.errors import ConfigError

from .cost import CostModel
from .least_loaded import LeastLoaded
from .ports import RoutingPolicy
from .prefix import PrefixAware
from .round_robin import RoundRobin
from .session import SessionAware

PolicyName = Literal["round-robin", "least-loaded", "prefix", "session"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


def make_policy(name: PolicyName, cost: CostModel | None = None, *, seed: int = 0) -> RoutingPolicy:
    """Raises ConfigError for a name that is none of ``POLICIES``."""
    cost = cost or CostModel()
    match name:
        case "round-robin":
            return RoundRobin()
        case "least-loaded":
            return LeastLoaded(cost, seed=seed)
        case "prefix":
            return PrefixAware(cost, seed=seed)
        case "session":
            return SessionAware(cost, seed=seed)
    raise ConfigError(f"policy = {name!r} is not allowed: it must be one of {', '.join(POLICIES)}.")
