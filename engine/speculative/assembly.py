"""Speculation as configured, if there is any."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from energyopt.core.config import SpeculativeConfig
from energyopt.core.errors import ConfigError

from ..batch import Runner, draft_limit
from .depth import AdaptiveDepth, EnergyBetween
from .draft_model import DraftModel
from .drafts import Drafts
from .ngram import NgramProposer
from .ports import BatchProposer, DepthPolicy, FixedDepth, Proposer


@runtime_checkable
class Accompanied(Protocol):
    """What a Runner also is if a draft model may stand beside its own."""

    draft: DraftModel | None


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
    return Drafts(_proposer(config, runner), policy, limit)


def _proposer(config: SpeculativeConfig, runner: Runner) -> Proposer | BatchProposer:
    if config.model is None:
        return NgramProposer(longest=config.prompt_lookup_max, shortest=config.prompt_lookup_min)
    draft = runner.draft if isinstance(runner, Accompanied) else None
    if draft is None:
        raise ConfigError(f"speculative_config.model = {config.model!r} was not opened beside this engine's model.")
    return draft
