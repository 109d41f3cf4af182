"""Dividing whole amounts without losing or inventing any."""

from __future__ import annotations

from collections.abc import Sequence

WEIGHT_UNITS = 1 << 50
"""Weights become whole numbers of this resolution, so that the division is exact integer arithmetic."""


def divide(amount: int, weights: Sequence[float]) -> list[int]:
    """Whole parts of ``amount`` >= 0 in proportion to ``weights``, by largest remainder: they sum to it exactly.

    Weights that are all 0 count as equal; without weights there are no parts.
    """
    if len(weights) < 2:
        return [amount] * len(weights)
    total = sum(weights)
    if total <= 0:
        return divide(amount, [1.0] * len(weights))
    whole = [int(weight / total * WEIGHT_UNITS) for weight in weights]
    unit = sum(whole)
    if not unit:
        return divide(amount, [1.0] * len(weights))
    shares = [divmod(amount * weight, unit) for weight in whole]
    parts = [part for part, _ in shares]
    missing = amount - sum(parts)
    if missing:
        rests = [rest for _, rest in shares]
        for index in sorted(range(len(parts)), key=rests.__getitem__, reverse=True)[:missing]:
            parts[index] += 1
    return parts
