"""The kept past of a worker or pool: a quarter of an hour for its own screen, a minute for every row."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from pdtop.cluster.model import Latency, Pool, Worker
from pdtop.metrics.series import Series

NAMES = ("ttft", "tpot", "queue_time", "tokens", "running", "backlog", "kv")
HISTORY_S = 900.0
RECENT_POINTS = 60

Points = Mapping[str, float | None]


class Trends:
    """One point of each name a tick; None is a gap."""

    __slots__ = ("_recent", "_series")

    def __init__(self, tick_s: float) -> None:
        self._series = {name: Series(int(HISTORY_S / tick_s), tick_s) for name in NAMES}
        self._recent: dict[str, deque[float | None]] = {name: deque(maxlen=RECENT_POINTS) for name in NAMES}

    def add(self, points: Points) -> None:
        for name in NAMES:
            self._series[name].append(points[name])
            self._recent[name].append(points[name])

    def recent(self) -> dict[str, tuple[float | None, ...]]:
        """The newest points, oldest first."""
        return {name: tuple(points) for name, points in self._recent.items()}

    def history(self) -> dict[str, tuple[float | None, ...]]:
        """All kept points, for another thread: one less than there is room for, since a point that is added
        meanwhile overwrites the oldest."""
        return {name: series.tail(series.capacity - 1) for name, series in self._series.items()}


#: A point for numbers that are not of now.
GAP: Points = dict.fromkeys(NAMES)


def trend_points(view: Worker | Pool, kv_use: float | None) -> Points:
    """The newest point of every trend of a worker or pool."""
    return {
        "ttft": middle(view.ttft),
        "tpot": middle(view.tpot),
        "queue_time": middle(view.queue_time),
        "tokens": view.tokens_per_s,
        "running": view.running,
        "backlog": view.backlog.total,
        "kv": kv_use,
    }


def middle(latency: Latency | None) -> float | None:
    """p50 for a trend; the mean where p50 lies below the first bound. None, a gap, if nothing finished."""
    found = latency.quantile(0.5) if latency is not None else None
    if found is None or latency is None:
        return None
    return latency.mean if found.below is not None else found.value
