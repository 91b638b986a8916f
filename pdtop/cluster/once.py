"""Snapshots without a screen: one after two reads a window apart, or one after the other for ever."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from pdtop.cluster.launch import Watched, start
from pdtop.cluster.model import READABLE, Snapshot
from pdtop.cluster.monitor import Monitor

#: Beyond a request's own limit, this much is given to the first round.
_PATIENCE_S = 1.0


def snapshot_once(watched: Watched, *, window_s: float, narrate: Callable[[str], None]) -> Snapshot:
    """A snapshot whose rates and percentiles are over ``window_s``; with 0 one round, so without rates."""
    # The second read falls on the window's end: nothing needs to be read more often than that.
    interval = max(min(watched.targets.settings.interval_s, window_s), 0.2) if window_s else None
    monitor = start(watched, interval_s=interval, window_s=max(window_s, 1.0))
    try:
        _first_round(monitor, watched)
        if window_s:
            narrate(f"read once; reading again in {window_s:g} s")
            time.sleep(window_s + (interval or 0.0))
        return monitor.take()
    finally:
        monitor.stop()


def snapshots(watched: Watched, *, window_s: float) -> Iterator[Snapshot]:
    """Every snapshot from the first complete round on, until the caller stops asking."""
    monitor = start(watched, window_s=max(window_s, 1.0))
    arrived: SimpleQueue[Snapshot] = SimpleQueue()
    try:
        _first_round(monitor, watched)
        monitor.subscribe(arrived.put)
        while True:
            yield arrived.get()
    finally:
        monitor.stop()


def anything_reached(taken: Snapshot) -> bool:
    """Whether any worker or router gave an answer that could be used."""
    states = [*(worker.state for worker in taken.workers), *(router.state for router in taken.routers)]
    return any(state in READABLE for state in states)


def _first_round(monitor: Monitor, watched: Watched) -> None:
    """Wait until everybody has answered once or had the time to."""
    monitor.wait_first_round(watched.targets.settings.timeout_s + _PATIENCE_S)
