"""What fell into a histogram during a window: quantiles, mean, share within a target.

Rules: classic interpolation as PromQL's ``histogram_quantile`` (lower edge of the first bucket 0,
buckets raised to their running maximum); in the ``+Inf`` bucket the answer is only "at least the last
finite bound"; nothing in the window is no value. Workers are merged by adding buckets before any
quantile is taken, and only if their bounds are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import inf, isfinite
from operator import add


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile in the histogram's unit (seconds unless the metric says otherwise).

    ``value`` is the interpolated number. ``at_least``: it lies in the ``+Inf`` bucket, so only "``value``
    or more" is known. ``below``: it lies in the first bucket, so all that is known is "less than
    ``below``"; show that instead of ``value``.
    """

    value: float
    at_least: bool = False
    below: float | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """Part of the window at or under a target, 0..1.

    ``low``/``high`` are certain; ``interpolated`` assumes an even spread inside the bucket that holds the
    target (None if the target lies beyond the last finite bound). ``exact`` if the target is a bound.
    """

    low: float
    high: float
    interpolated: float | None

    @property
    def exact(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram's growth in a window (or its lifetime): bounds ascending, the last one ``inf``.

    ``counts`` are cumulative like the exposition's, never falling; ``sum`` is in the histogram's unit.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        """Observations in the window."""
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count > 0 and isfinite(self.sum) else None

    def quantile(self, q: float) -> Quantile | None:
        """The ``q`` quantile (0..1); None if nothing was observed."""
        total = self.count
        if total <= 0:
            return None
        counts = tuple(accumulate(self.counts, max))
        rank = q * total
        index = next(i for i, count in enumerate(counts) if count >= rank and count > 0)
        bound = self.bounds[index]
        if bound == inf:  # with no other bucket not even a lower bound is known
            return Quantile(self.bounds[index - 1], at_least=True) if index else None
        lower_bound = self.bounds[index - 1] if index else min(0.0, bound)
        below = counts[index - 1] if index else 0.0
        value = lower_bound + (bound - lower_bound) * (rank - below) / (counts[index] - below)
        return Quantile(value, below=bound if index == 0 and bound > 0 else None)

    def share_within(self, target: float) -> Share | None:
        """Share of observations at or under ``target``; None if nothing was observed."""
        total = self.count
        if total <= 0:
            return None
        counts = tuple(accumulate(self.counts, max))
        below_count, below_bound = 0.0, 0.0
        for bound, count in zip(self.bounds, counts, strict=True):
            if bound == target:
                return Share(count / total, count / total, count / total)
            if bound > target:
                low, high = below_count / total, count / total
                if bound == inf:
                    return Share(low, 1.0, None)
                part = (target - below_bound) / (bound - below_bound)
                return Share(low, high, low + (high - low) * max(0.0, part))
            below_count, below_bound = count, bound
        return Share(1.0, 1.0, 1.0)

    def share_above(self, bound: float) -> float | None:
        """Share strictly above one of the histogram's own bounds; None if empty or not a bound."""
        if self.count <= 0 or bound not in self.bounds:
            return None
        return 1.0 - self.counts[self.bounds.index(bound)] / self.count


def merge(parts: Iterable[Distribution]) -> Distribution | None:
    """Add distributions of the same bounds; None if there is none or their bounds differ."""
    merged: Distribution | None = None
    for part in parts:
        if merged is None:
            merged = part
        elif merged.bounds != part.bounds:
            return None
        else:
            counts = tuple(map(add, merged.counts, part.counts))
            merged = Distribution(merged.bounds, counts, merged.sum + part.sum)
    return merged
