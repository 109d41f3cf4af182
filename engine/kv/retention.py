"""Which computed blocks are worth keeping: a pure function of positions, the same for the cache and for the tiers.

Dense keeping floods a pool with states and windows that no later request can use. A later request continues from a
*boundary*: where a prompt ended, where two prompts were seen to part, or the end of a segment of fixed length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from energyopt.core.errors import ConfigError

from .layout import FullAttention, GroupSpec, Layout, RecurrentState

NEVER = 1 << 62
"""A position that no request reaches."""


def keeps(group: GroupSpec, index: int, boundaries: Sequence[int], interval: int | None, drop: int = 0) -> bool:
    """Whether block ``index`` of ``group`` is read by a request that continues from a reachable boundary.

    ``boundaries`` are multiples of the cache's grain. ``interval`` None keeps everything; N > 0 adds every multiple of
    N to the boundaries. With speculation a hit ends ``drop`` tokens before the boundary, while the attention groups
    must still reach it.
    """
    if interval is None or isinstance(group, FullAttention):
        return True
    start, stop = index * group.block_tokens, (index + 1) * group.block_tokens
    if isinstance(group, RecurrentState):
        ends = (max(0, boundary - drop) for boundary in boundaries)
        return stop in ends or (interval > 0 and stop % interval == 0)
    if any(start < end and group.first_read(max(0, end - drop)) <= index for end in boundaries):
        return True
    # ``first_read`` grows with the position, so only the first segment end behind the block can need it.
    return interval > 0 and group.first_read(max(0, -(-stop // interval) * interval - drop)) <= index


@dataclass(frozen=True, slots=True)
class Retention:
    """The policy of one cache: interval, speculation and layout. Raises ConfigError for an interval between grains.

    ``drop`` is 0, or one grain with speculative decoding: the drafter needs the last tokens of a hit computed again.
    """

    layout: Layout
    interval: int | None = None
    drop: int = 0

    def __post_init__(self) -> None:
        step = self.scheduler_block
        if self.interval is not None and self.interval % step:
            raise ConfigError(
                f"retention_interval = {self.interval} is not allowed: it must be 0 or a multiple of {step} tokens, "
                "the smallest length in which every group's blocks end together."
            )

    @property
    def scheduler_block(self) -> int:
        """Tokens in which every group's blocks end together."""
        return math.lcm(*(group.block_tokens for group in self.layout.groups))

    def boundaries(self, prompt_tokens: int, shared: int) -> tuple[int, ...]:
        """Where a later request may continue: before the last token of the prompt, and where another prompt parted
        (``shared``, 0 if none did). Multiples of the grain, without 0."""
        grain = self.layout.grain
        ends = {(prompt_tokens - 1) // grain * grain, shared // grain * grain}
        return tuple(sorted(ends - {0}))

    def stop(self, position: int, boundaries: Sequence[int]) -> int:
        """The next position after ``position`` at which a state is to be kept, so a chunk of a prompt must end there.

        That makes later hits independent of how the prompt was cut into chunks. ``NEVER`` without recurrent groups.
        """
        block = self.layout.state_tokens
        if block is None:
            return NEVER
        every = block if self.interval is None else self.interval
        stops = [end - self.drop for end in boundaries if end - self.drop > position]
        if every:
            stops.append((position // every + 1) * every)
        return min(stops, default=NEVER)
