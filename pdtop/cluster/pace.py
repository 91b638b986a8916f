"""When to ask next: a fixed grid while a target answers, growing gaps while it is dead."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from pdtop.cluster.model import State

#: Failures in a row after which the gaps grow: a short stumble is to be seen through at the usual pace.
PATIENCE = 3
NO_ANSWER = frozenset({State.TIMEOUT, State.REFUSED, State.TLS})
REST_S = 0.1  # after a failure: the other side is to notice that the old connection is closed
LONGEST_GAP_S = 10.0  # a worker that comes back is seen at the latest after this


class Pace:
    """An interval that can be changed while others sleep by it."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._sleepers: set[asyncio.Future[None]] = set()

    @property
    def interval_s(self) -> float:
        return self._interval_s

    def change(self, interval_s: float) -> None:
        """Use this interval from now on; whoever sleeps goes by it at once."""
        if interval_s != self._interval_s:
            self._interval_s = interval_s
            self.wake()

    def wake(self) -> None:
        """End every sleep now."""
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    async def sleep_until(self, due: float) -> bool:
        """Sleep until the loop's clock shows ``due`` (``inf``: until woken); False if woken before."""
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[None] = loop.create_future()
        timer = loop.call_at(due, _finish, sleeper) if due < inf else None
        self._sleepers.add(sleeper)
        try:
            await sleeper
        finally:
            if timer is not None:
                timer.cancel()
            self._sleepers.discard(sleeper)
        return loop.time() >= due


def _finish(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


@dataclass(slots=True)
class Schedule:
    """Due times of one endpoint of one target, in seconds of the loop's clock."""

    due: float
    failures: int = 0
    last: float | None = None  # the grid point before ``due``; None: not asked yet

    def answered(self, now: float, interval_s: float) -> None:
        """Next time on the grid; times that have passed meanwhile are left out, not caught up with."""
        self.failures = 0
        self._next(now, interval_s)

    def failed(self, now: float, interval_s: float) -> None:
        """Next time after no answer: on the grid at first, then after growing gaps."""
        self.failures += 1
        self._next(now + REST_S, interval_s)

    def repace(self, interval_s: float) -> None:
        """The interval has changed while waiting."""
        if self.last is not None:
            self.due = self.last + gap(interval_s, self.failures)

    def _next(self, earliest: float, interval_s: float) -> None:
        self.last = self.due
        self.due = max(self.due + gap(interval_s, self.failures), earliest)


def gap(interval_s: float, failures: int) -> float:
    """Seconds from one try to the next after this many failures in a row."""
    doublings = min(max(failures - PATIENCE, 0), 16)
    return max(interval_s, min(interval_s * 2.0**doublings, LONGEST_GAP_S))


def after(schedule: Schedule, now: float, state: State, interval_s: float) -> None:
    """Plan the next time. A refused key is tried less and less, too: each refusal is a line in a log."""
    if state in NO_ANSWER or state is State.AUTH:
        schedule.failed(now, interval_s)
    else:
        schedule.answered(now, interval_s)
