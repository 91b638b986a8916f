"""Before and after a change: the minutes on both sides, measure by measure, and what can be said. No I/O.

Snapshots' rates and percentiles are over a window, so points a second apart hardly differ by chance: they
are taken together in blocks no shorter than the window, and the blocks' medians show how much a measure
scatters by itself. The first window after a change still holds requests of before it and is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, isfinite, sqrt
from statistics import median, variance

from pdtop.cluster.model import Latency, Pool, Role, Snapshot
from pdtop.cluster.words import count, duration, percent, span
from pdtop.operations.model import Comparison

#: At most so much of each side is kept and compared, in points no closer than that.
SIDE_S = 600.0
_STEP_S = 1.9
#: Blocks are at least so long, and each side needs that many.
BLOCK_S = 30.0
BLOCKS = 4
#: Clear: the sides' medians are apart by more than STEEP standard errors of the blocks' medians, never by
#: less than LEAST times their scatter (load drifts by itself), and by more than SMALL of the larger one.
_STEEP = 4.0
_LEAST = 1.5
_SMALL = 0.05
#: Standard error of a median over that of a mean, for a normal scatter.
_MEDIAN_ERROR = 1.25
_MOST = _STEEP * _MEDIAN_ERROR * sqrt(2 / BLOCKS)  # times the scatter, with the fewest blocks

_TOO_EARLY = "too early, {} more"
_NO_DIFFERENCE = "no clear difference"
_NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class _Value:
    """``bound``: all that is known is "this or more"."""

    value: float
    bound: bool = False


@dataclass(frozen=True, slots=True)
class _Measure:
    """``better``: the direction that is, +1 or -1; 0: neither, it is the traffic's own."""

    name: str
    better: int
    words: Callable[[float], str]
    read: Callable[[Snapshot, Role], _Value | None]


@dataclass(frozen=True, slots=True)
class _Point:
    at: float
    window_s: float
    values: Mapping[Role, tuple[_Value | None, ...]]


@dataclass(frozen=True, slots=True)
class _Mark:
    """A change. ``before`` are the points from before it."""

    at: float
    title: str
    role: Role
    before: tuple[_Point, ...]
    after: list[_Point] = field(default_factory=list)


class BeforeAfter:
    """Keeps the last minutes of both pools; from :meth:`mark` on it also keeps those after the change.

    All times are epoch seconds, as in a snapshot. A new mark takes the place of the one before, whose minutes
    after become the new one's minutes before.
    """

    def __init__(self) -> None:
        self._recent: deque[_Point] = deque()
        self._mark: _Mark | None = None

    def feed(self, snapshot: Snapshot) -> None:
        """Take one snapshot; looks between two ticks and at what is over are left out."""
        at = snapshot.at
        if self._recent and at - self._recent[-1].at < _STEP_S:
            return
        point = _Point(at, snapshot.window_s, {role: _read(snapshot, role) for role in _POOLS})
        self._recent.append(point)
        while at - self._recent[0].at > SIDE_S:
            self._recent.popleft()
        if self._mark is not None and self._mark.at < at <= self._mark.at + SIDE_S:
            self._mark.after.append(point)

    def mark(self, at: float, title: str, role: Role) -> None:
        """A change of ``role``'s pool has taken effect."""
        earlier = self._mark.at + self._recent[-1].window_s if self._mark and self._recent else 0.0
        before = tuple(point for point in self._recent if max(at - SIDE_S, earlier) <= point.at <= at)
        after = [point for point in self._recent if point.at > at]
        self._mark = _Mark(at, title, role if role in _POOLS else Role.DECODE, before, after)

    def comparison(self, now: float) -> Comparison | None:
        """What the newest change has made of its pool; None before the first."""
        mark = self._mark
        if mark is None:
            return None
        window = max((point.window_s for point in (*mark.before, *mark.after)), default=0.0)
        block = max(BLOCK_S, window)
        after = [point for point in mark.after if point.at >= mark.at + window]
        early = mark.at + window + BLOCKS * block - now
        rows: list[tuple[str, str, str, str]] = []
        verdicts: dict[str, _Verdict] = {}
        for index, measure in enumerate(MEASURES):
            was = _Side.of(mark.before, mark.role, index, block)
            now_is = _Side.of(after, mark.role, index, block)
            if mark.role is Role.DECODE and measure.name == "hit rate" and not (was.values or now_is.values):
                continue  # a decode worker caches no prefixes unless it is told to
            verdict = verdicts[measure.name] = _judge(was, now_is, early)
            rows.append(
                (
                    measure.name,
                    was.words(measure.words),
                    now_is.words(measure.words),
                    verdict.words(measure),
                )
            )
        return Comparison(
            title=mark.title,
            since=mark.at,
            before_s=mark.at - mark.before[0].at if mark.before else 0.0,
            after_s=max(0.0, min(SIDE_S, now - mark.at)),
            rows=tuple(rows),
            words=_summary(verdicts, early, block),
        )


# What is compared


def _spread(snapshot: Snapshot, role: Role) -> _Value | None:
    """The busiest worker's share over the mean: 1 is even."""
    shares = [
        worker.share
        for worker in snapshot.pool_workers(role)
        if worker.share is not None and worker.usable is not False and not worker.draining
    ]
    total = sum(shares)
    return _Value(max(shares) * len(shares) / total) if len(shares) > 1 and total > 0 else None


def _quantile(latency: Latency | None, q: float) -> _Value | None:
    """In the first bucket a quantile says little: the mean stands in for a p50, for others nothing does."""
    found = latency.quantile(q) if latency is not None else None
    if latency is None or found is None:
        return None
    if found.below is not None:
        return _value(latency.mean if q == 0.5 else None)
    return _value(found.value, bound=found.at_least)


def _backlog(snapshot: Snapshot, role: Role) -> _Value | None:
    backlog = _pool(snapshot, role).backlog
    return None if backlog.lower_bound else _value(backlog.total)


def _pool(snapshot: Snapshot, role: Role) -> Pool:
    return snapshot.prefill if role is Role.PREFILL else snapshot.decode


def _value(value: float | None, *, bound: bool = False) -> _Value | None:
    return _Value(value, bound) if value is not None and isfinite(value) else None


def _times(ratio: float) -> str:
    return f"{ratio:.2f}× mean"


_POOLS = (Role.PREFILL, Role.DECODE)
MEASURES = (
    _Measure("busiest share", -1, _times, _spread),
    _Measure("hit rate", +1, percent, lambda shot, role: _value(_pool(shot, role).hit_rate)),
    _Measure("TTFT p50", -1, duration, lambda shot, _: _quantile(shot.ttft, 0.5)),
    _Measure("TTFT p99", -1, duration, lambda shot, _: _quantile(shot.ttft, 0.99)),
    _Measure("TPOT p50", -1, duration, lambda shot, _: _quantile(shot.tpot, 0.5)),
    _Measure("TPOT p99", -1, duration, lambda shot, _: _quantile(shot.tpot, 0.99)),
    _Measure("backlog", -1, count, _backlog),
    _Measure("tokens/s", 0, count, lambda shot, role: _value(_pool(shot, role).tokens_per_s)),
)


def _read(snapshot: Snapshot, role: Role) -> tuple[_Value | None, ...]:
    return tuple(measure.read(snapshot, role) for measure in MEASURES)


# What can be said


@dataclass(frozen=True, slots=True)
class _Side:
    """One measure on one side of the change."""

    values: tuple[_Value, ...]
    points: int  # also those where it was not known
    blocks: tuple[float, ...]  # medians

    @classmethod
    def of(cls, points: Sequence[_Point], role: Role, index: int, block_s: float) -> _Side:
        blocks: dict[int, list[float]] = {}
        values = []
        for point in points:
            value = point.values[role][index]
            if value is not None:
                values.append(value)
                blocks.setdefault(int((point.at - points[0].at) // block_s), []).append(value.value)
        most = max(map(len, blocks.values()), default=0)
        full = [median(block) for block in blocks.values() if 2 * len(block) >= most]
        return cls(tuple(values), len(points), tuple(full))

    @property
    def known(self) -> bool:
        """At least half of the time."""
        return bool(self.values) and 2 * len(self.values) >= self.points

    @property
    def median(self) -> float | None:
        return median(value.value for value in self.values) if self.known else None

    def words(self, words: Callable[[float], str]) -> str:
        middle = self.median
        if middle is None:
            return _NOT_KNOWN
        bound = 2 * sum(value.bound for value in self.values) > len(self.values)
        return f"≥ {words(middle)}" if bound else words(middle)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """``change``: of the measure, as part of what it was before, if there is a clear one (inf: from 0)."""

    said: str
    change: float | None = None

    def words(self, measure: _Measure) -> str:
        if self.change is None:
            return self.said
        amount = f"{self.change:+.0%}".replace("%", " %").replace("-", "−")
        if not isfinite(self.change):
            amount = "up from 0"
        if not measure.better:
            return amount
        return f"{amount}, {'better' if self.change * measure.better > 0 else 'worse'}"


def _judge(before: _Side, after: _Side, early_s: float) -> _Verdict:
    was, now = before.median, after.median
    if early_s > 0:
        return _Verdict(_TOO_EARLY.format(span(ceil(early_s))))
    if was is None or now is None:
        return _Verdict(_NOT_KNOWN)
    if len(before.blocks) < BLOCKS or len(after.blocks) < BLOCKS:
        return _Verdict(
            "not enough " + ("before" if len(before.blocks) < BLOCKS else "after") + " it to tell"
        )
    apart = abs(now - was)
    if apart <= _SMALL * max(abs(now), abs(was)) or apart <= _needed(before.blocks, after.blocks):
        return _Verdict(_NO_DIFFERENCE)
    return _Verdict("", (now - was) / was if was else float("inf"))


def _needed(before: Sequence[float], after: Sequence[float]) -> float:
    """How far the medians have to be apart, by what the blocks scatter on their own side."""
    free = len(before) + len(after) - 2
    scatter = sqrt((variance(before) * (len(before) - 1) + variance(after) * (len(after) - 1)) / free)
    error = _MEDIAN_ERROR * sqrt(1 / len(before) + 1 / len(after))
    return scatter * max(_LEAST, _STEEP * error)


def _summary(verdicts: Mapping[str, _Verdict], early_s: float, block_s: float) -> str:
    if early_s > 0:
        return _TOO_EARLY.format(span(ceil(early_s)))
    rule = (
        f"a difference is clear if it is over {_SMALL:.0%} and {_LEAST:g} to {_MOST:.1f} times "
        f"what the measure scatters by itself from {span(block_s)} to {span(block_s)}"
    ).replace("%", " %")
    clear = [name for name, verdict in verdicts.items() if verdict.change is not None]
    unclear = [verdict.said for verdict in verdicts.values()]
    if not clear and _NO_DIFFERENCE not in unclear:
        return unclear[0]
    words = f"clear: {', '.join(clear)}" if clear else _NO_DIFFERENCE
    if "tokens/s" in clear and len(clear) > 1:
        words += "; the traffic changed too, so not all need be due to this change"
    return f"{words}; {rule}"
