"""Speculation as configured, if there is any."""

from __future__ import annotations

from energyopt.core.config import SpeculativeConfig
from energyopt.core.errors import ConfigError

from ..batch import Runner, draft_limit
from .depth import AdaptiveDepth, EnergyBetween
from .drafts import Drafts
from .ngram import NgramProposer
from .ports import DepthPolicy, FixedDepth


def drafts_for(config: SpeculativeConfig | None, runner: Runner, energy: EnergyBetween | None) -> Drafts | None:
    """None if nothing is to be guessed. ``energy`` tells joules of a step.

    Raises ConfigError for a runner that verifies no guesses: who asked for them would believe that they are made.
    """
    if config is None:
        return None
    limit = min(config.num_speculative_tokens, draft_limit(runner))
    if limit == 0:
        raise ConfigError(
            "speculative_config is not possible here: this engine verifies no guesses. Layouts of several ranks do "
            "not, nor do models with a recurrent state, which cannot go back to before a wrong guess."
        )
    policy: DepthPolicy = AdaptiveDepth(limit, energy) if config.adaptive else FixedDepth(limit)
    proposer = NgramProposer(longest=config.prompt_lookup_max, shortest=config.prompt_lookup_min)
    return Drafts(proposer, policy, limit)
