"""What a target did over a stretch of time: the last seconds, between two moments, or its whole life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pdtop.metrics.distribution import Distribution
from pdtop.metrics.timeline import Numbers, Timeline, Window

N = TypeVar("N", bound=Numbers)

#: The last so many seconds, the time between two moments, or None for everything since the target's start.
Span = float | tuple[float, float] | None

_NONE: Mapping[str, Distribution] = {}


@dataclass(frozen=True, slots=True)
class Period(Generic[N]):
    """One target over one span. Without a second read there is no growth, so nothing is known.

    Over a whole life there are totals and latencies, but no rates: when it began is not exported.
    """

    newest: N
    window: Window[N] | None
    lifetime: bool

    @classmethod
    def of(cls, timeline: Timeline[N], span: Span) -> Period[N] | None:
        """None before the first read."""
        newest = timeline.newest
        if newest is None:
            return None
        if span is None:
            return cls(newest, None, True)
        window = timeline.between(*span) if isinstance(span, tuple) else timeline.window(span)
        return cls(newest, window, False)

    @property
    def seconds(self) -> float | None:
        """Length of the window; None if there is none."""
        return self.window.seconds if self.window is not None else None

    @property
    def resets(self) -> int:
        return self.window.resets if self.window is not None else 0

    def increase(self, concept: str) -> float | None:
        """Growth of a counter; over a lifetime the counter as it stands."""
        if self.lifetime:
            return self.newest.counter(concept)
        return self.window.increase(concept) if self.window is not None else None

    def rate(self, concept: str) -> float | None:
        return self.window.rate(concept) if self.window is not None else None

    def distribution(self, concept: str) -> Distribution | None:
        if self.lifetime:
            return self.newest.histogram(concept)
        return self.window.distribution(concept) if self.window is not None else None

    def split(self, concept: str) -> Mapping[str, Distribution]:
        """By ``is_streaming``."""
        if self.lifetime:
            return self.newest.histogram_split(concept)
        return self.window.distribution_split(concept) if self.window is not None else _NONE

    def by(self, concept: str, label: str) -> Mapping[str, Distribution]:
        if self.lifetime:
            return self.newest.histograms_by(concept, label)
        return self.window.distributions_by(concept, label) if self.window is not None else _NONE
