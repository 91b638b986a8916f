"""Runs one engine against the wall clock: a timer for its next event, and its events to their receiver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from pdtop.simulator.engine import Event
from pdtop.simulator.telemetry import Engine

_EPOCH = time.time() - time.monotonic()


def wall_clock() -> float:
    """Epoch seconds that never jump: the start's wall clock carried on by the monotonic one."""
    return _EPOCH + time.monotonic()


class Scheduler:
    """The engine of one rank in real time. While it is frozen its clock stands and nothing comes out."""

    def __init__(self, engine: Engine, deliver: Callable[[Event], None]) -> None:
        self.engine = engine
        self._deliver = deliver
        self._timer: asyncio.TimerHandle | None = None
        self._late: list[Callable[[float], Sequence[Event]]] = []

    def act(self, step: Callable[[float], Sequence[Event]]) -> None:
        """Do ``step`` at the present moment; a hung scheduler gets to it when it is back."""
        if self.engine.frozen:
            self._late.append(step)
            return
        events = step(wall_clock())
        self._arm()
        for event in events:
            self._deliver(event)

    def sync(self) -> None:
        """Bring the engine's reports up to date, as reading them is an event of its own."""
        self.act(self.engine.advance)

    async def answer(self) -> None:
        """Return when the scheduler has taken notice, which a hung one does not."""
        noticed = asyncio.Event()

        def notice(now: float) -> Sequence[Event]:
            noticed.set()
            return self.engine.advance(now)

        self.act(notice)
        await noticed.wait()

    def hang(self) -> None:
        self.sync()
        self.engine.frozen = True
        self._arm()

    def resume(self) -> None:
        self.engine.frozen = False
        late, self._late = self._late, []
        for step in (self.engine.advance, *late):
            self.act(step)

    def stop(self) -> None:
        self.engine.frozen = True
        self._late.clear()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.engine.next_event
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - wall_clock()), self.sync)
