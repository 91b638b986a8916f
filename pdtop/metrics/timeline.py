"""A target's recent pages as one story: what grew between two moments, across restarts and new series.

Counters, buckets and sums of every read are kept in the terms of the newest page: when a counter starts
again from zero, the kept values are lowered by what it had reached; when the page's layout changes, they are
put in the new order. So growth between any two kept reads is one subtraction.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from operator import gt
from typing import Generic, Protocol, Self, TypeVar

from pdtop.metrics.distribution import Distribution
from pdtop.metrics.exposition import Layout, Series
from pdtop.metrics.growth import Growth

#: A read counts as being at the asked moment if it is late by no more than this (polls jitter).
_SLACK_S = 0.05
#: A window may begin earlier than asked by its own length, or by this if that is more; not by a long gap.
_PATIENCE_S = 5.0
#: Series that are off the page are remembered up to this number.
_LOST = 10_000


class Numbers(Protocol):
    """What a timeline needs of :class:`WorkerNumbers` or :class:`RouterNumbers`."""

    @property
    def at(self) -> float: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def values(self) -> Sequence[float]: ...
    @property
    def complete(self) -> bool: ...
    @property
    def pids(self) -> frozenset[str]: ...
    def with_values(self, values: Sequence[float]) -> Self: ...
    def counter(self, concept: str) -> float | None: ...
    def named_counter(self, name: str) -> float | None: ...
    def histogram(self, concept: str) -> Distribution | None: ...
    def trusts(self, concept: str) -> bool: ...
    def histogram_split(self, concept: str) -> Mapping[str, Distribution]: ...
    def histograms_by(self, concept: str, label: str = ...) -> Mapping[str, Distribution]: ...


N = TypeVar("N", bound=Numbers)


@dataclass(frozen=True, slots=True)
class Window(Generic[N]):
    """What happened between two reads. ``seconds`` is the time between them, ``resets`` the restarts.

    ``growth`` is the newest page with, in place of each counter, bucket and sum, what it grew by; gauges
    have no value in it. ``newest`` is that page as it was.
    """

    start: float
    end: float
    resets: int
    growth: N
    newest: N

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def increase(self, concept: str) -> float | None:
        """Growth of a counter, restarts counted from zero; None if the page does not have it."""
        return self.growth.counter(concept)

    def increase_named(self, name: str) -> float | None:
        """Growth of a counter by its exported name without prefix."""
        return self.growth.named_counter(name)

    def rate(self, concept: str) -> float | None:
        """Growth of a counter per second."""
        increase = self.increase(concept)
        return None if increase is None or self.seconds <= 0 else increase / self.seconds

    def distribution(self, concept: str) -> Distribution | None:
        """What fell into a histogram; with a count of 0 nothing did. None if it is absent or unusable."""
        # A page whose own buckets fall is not to be trusted, even if their growth happens to look right.
        return self.growth.histogram(concept) if self.newest.trusts(concept) else None

    def distribution_split(self, concept: str) -> Mapping[str, Distribution]:
        """The same by ``is_streaming`` ("true", "false")."""
        return self.growth.histogram_split(concept) if self.newest.trusts(concept) else {}

    def distributions_by(self, concept: str, label: str = "stage") -> Mapping[str, Distribution]:
        """The same by the values of ``label``."""
        return self.growth.histograms_by(concept, label) if self.newest.trusts(concept) else {}


class Timeline(Generic[N]):
    """Reads of one target over the last ``span_s`` seconds (and one before, so that a window has a start).

    Of more than ``points`` reads the older half is thinned out; growth stays exact, only the moments at which
    a window can begin become fewer. A read takes 8 bytes a series, about 4 KB for a worker: choose a span not
    much longer than the windows that will be asked for. Reads that failed are simply not appended.
    """

    __slots__ = (
        "_complete",
        "_holes",
        "_layout",
        "_lost",
        "_newest",
        "_points",
        "_resets",
        "_spacing",
        "_span",
        "_times",
        "_values",
    )

    def __init__(self, span_s: float, points: int = 32) -> None:
        self._span = span_s
        self._points = max(points, 2)
        self._spacing = span_s / self._points
        self._times: list[float] = []
        self._values: list[array[float]] = []  # of the growing and summed series of _layout
        self._layout: Layout | None = None
        self._newest: N | None = None
        self._complete = False  # some page was whole: what was not on it did not exist
        self._holes = False  # some kept values are no numbers
        self._lost: dict[Series, float] = {}  # last values of series that are no longer on the page
        self._resets: list[float] = []

    def __len__(self) -> int:
        return len(self._times)

    @property
    def newest(self) -> N | None:
        """The newest read."""
        return self._newest

    @property
    def oldest_at(self) -> float | None:
        """When the oldest kept read was made."""
        return self._times[0] if self._times else None

    def append(self, numbers: N) -> bool:
        """Add the newest read; True if the target restarted since the one before. Older reads are ignored."""
        if self._times and numbers.at <= self._times[-1]:
            return False
        restarted = False
        values = array("d", numbers.values[: numbers.layout.windowed])
        whole = isfinite(sum(values))
        if self._layout is not None and self._newest is not None:
            if numbers.layout is not self._layout:
                self._rearrange(self._layout, numbers.layout, values)
            if self._holes or not whole:
                self._fill_holes(values)
                whole = isfinite(sum(values))
            replaced = bool(numbers.pids and self._newest.pids) and not numbers.pids & self._newest.pids
            growing = numbers.layout.growing
            if replaced or any(map(gt, self._values[-1][:growing], values)):
                restarted = self._restart(numbers.layout, values, everything=replaced)
            if restarted:
                self._resets.append(numbers.at)
                if numbers.complete:  # what a restarted target does not have yet will begin at 0
                    self._lost.clear()
        self._layout = numbers.layout
        self._newest = numbers
        self._complete |= numbers.complete
        self._holes = not whole
        self._times.append(numbers.at)
        self._values.append(values)
        self._forget()
        return restarted

    def window(self, seconds: float) -> Window[N] | None:
        """The last ``seconds`` up to the newest read, or what is known of them; None before a second read."""
        if not self._times:
            return None
        return self.between(self._times[-1] - seconds, self._times[-1])

    def between(self, start: float, end: float) -> Window[N] | None:
        """From the newest read at or before ``start`` to the newest at or before ``end``.

        If there is none before ``start``, or only one from before a long gap, the first read after it; None
        if that leaves no two reads.
        """
        last = bisect_right(self._times, end + _SLACK_S) - 1
        first = bisect_right(self._times, start + _SLACK_S) - 1
        if first < 0 or self._times[first] < start - max(end - start, _PATIENCE_S):
            first += 1
        if self._newest is None or self._layout is None or first >= last:
            return None
        growth = Growth(self._values[first], self._values[last], len(self._layout.series))
        began, ended = self._times[first], self._times[last]
        resets = bisect_right(self._resets, ended) - bisect_right(self._resets, began)
        return Window(began, ended, resets, self._newest.with_values(growth), self._newest)

    def _rearrange(self, before: Layout, layout: Layout, values: array[float]) -> None:
        """Put the kept values in the order of a new layout. ``values`` are those of the new page.

        A series that was not there before began at 0, unless every page before it was incomplete. One that
        is gone is remembered: a page may lack it once, and a counter that comes back goes on.
        """
        old = {series: index for index, series in enumerate(before.series[: before.windowed])}
        new = layout.series[: layout.windowed]
        last = self._values[-1]
        if len(self._lost) > _LOST:
            self._lost.clear()
        self._lost.update((series, last[old[series]]) for series in old.keys() - set(new))
        source: list[tuple[int, float]] = []
        for series, value in zip(new, values, strict=True):
            begin = 0.0 if self._complete else value
            source.append((old.get(series, -1), self._lost.pop(series, begin)))
        self._values = [
            array("d", [kept[index] if index >= 0 else begin for index, begin in source])
            for kept in self._values
        ]
        self._holes |= not isfinite(sum(self._values[-1]))

    def _fill_holes(self, values: array[float]) -> None:
        """A sample that is no number is skipped: the value before it stands, or after it if there is none."""
        last = self._values[-1]
        later: dict[int, float] = {}
        for index, value in enumerate(values):
            if not isfinite(value):
                values[index] = last[index]
            elif not isfinite(last[index]):
                later[index] = value
        if later:
            self._values = [kept[:] for kept in self._values]  # windows may still look at the old ones
            for kept in self._values:
                for index, value in later.items():
                    kept[index] = value

    def _restart(self, layout: Layout, values: array[float], *, everything: bool) -> bool:
        """Lower the kept values of counters that began again; True if there are any.

        A histogram begins again as a whole. Counters that went below zero are broken, not restarted.
        """
        last = self._values[-1]
        fallen = [i for i in range(layout.growing) if everything or 0 <= values[i] < last[i]]
        if not fallen and not everything:
            return False
        again = {(layout.series[i].family, layout.series[i].labels) for i in fallen}
        indexes = [
            index
            for index, series in enumerate(layout.series[: layout.windowed])
            if everything or (series.family, series.labels) in again
        ]
        self._values = [kept[:] for kept in self._values]  # windows may still look at the old ones
        reached = [last[index] for index in indexes]
        for kept in self._values:
            for index, value in zip(indexes, reached, strict=True):
                kept[index] -= value
        return True

    def _forget(self) -> None:
        """Drop what no window needs: reads older than the span but one, and some of the older half."""
        times, values = self._times, self._values
        surplus = bisect_left(times, times[-1] - self._span - _SLACK_S) - 1
        if surplus > 0:
            del times[:surplus], values[:surplus]
        if len(times) > self._points:
            crowded = min(range(1, len(times) // 2), key=lambda index: times[index + 1] - times[index - 1])
            del times[crowded], values[crowded]
        while self._resets and self._resets[0] <= times[0]:
            del self._resets[0]
