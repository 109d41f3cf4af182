"""What an engine has done since it started: counters that only grow, owned by the step loop's thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from energyopt.core.records import FinishReason

LOCAL_COMPUTE = "local_compute"


class Counters:
    """``prompt_by_source`` sums to ``prompt_tokens``: each prompt is counted once, when first admitted.

    The scheduler counts all but ``ended``: that is for whoever makes the request's record, since a stop string, which
    the scheduler cannot see, may be the reason.
    """

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.preemptions = 0
        self.steps = 0
        self.step_seconds = 0.0
        self.finished: Counter[str] = Counter()
        self.prompt_by_source: Counter[str] = Counter()

    def admitted(self, prompt_tokens: int, cached_by_tier: Mapping[str, int]) -> None:
        self.prompt_tokens += prompt_tokens
        for tier, tokens in cached_by_tier.items():  # ``update`` takes several times as long
            self.prompt_by_source[tier] += tokens
        self.prompt_by_source[LOCAL_COMPUTE] += prompt_tokens - sum(cached_by_tier.values())

    def stepped(self, seconds: float, output_tokens: int) -> None:
        self.steps += 1
        self.step_seconds += seconds
        self.output_tokens += output_tokens

    def ended(self, reason: FinishReason) -> None:
        self.finished[reason.value] += 1
