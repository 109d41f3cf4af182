"""Speculation as configured, if there is any."""

from __future__ import annotations

from energyopt.core.config import SpeculativeConfig

from ..batch import Runner, draft_limit
from .depth import AdaptiveDepth, EnergyBetween
from .drafts import Drafts
from .ngram import NgramProposer
from .ports import DepthPolicy, FixedDepth


def drafts_for(config: SpeculativeConfig | None, runner: Runner, energy: EnergyBetween | None) -> Drafts | None:
    """None if nothing is to be guessed, or if the runner verifies no guesses. ``energy`` tells joules of a step."""
    if config is None:
        return None
    limit = min(config.num_speculative_tokens, draft_limit(runner))
    if limit == 0:
        return None
    policy: DepthPolicy = AdaptiveDepth(limit, energy) if config.adaptive else FixedDepth(limit)
    proposer = NgramProposer(longest=config.prompt_lookup_max, shortest=config.prompt_lookup_min)
    return Drafts(proposer, policy, limit)
