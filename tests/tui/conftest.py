"""The console in tests is idle when its loop has nothing to do, not when some milliseconds have passed.

Textual's pilot waits after each key until the process took little CPU time for 20 ms; of the minutes that a
thousand tests take, most would be such waits.
"""

from __future__ import annotations

import asyncio
import math
import time
from asyncio import TimerHandle
from collections.abc import Iterator
from typing import Protocol, cast

import pytest
from textual._context import active_app

#: A timer that is due so soon belongs to what is going on: Textual repaints 60 times a second.
_SOON_S = 0.03
#: What a thread does for the console comes back within this time, as with Textual's own waiting.
_THREAD_S, _LOOK_S = 0.04, 0.001


class _Loop(Protocol):
    """What asyncio's own loop has to do: it tells nobody."""

    _ready: list[asyncio.Handle]
    _scheduled: list[TimerHandle]

    def time(self) -> float: ...


async def idle(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """Wait until the loop has nothing to do now or soon; takes the place of Textual's ``wait_for_idle``."""
    loop = cast(_Loop, asyncio.get_running_loop())
    end, threads_end = time.monotonic() + max_sleep, time.monotonic() + _THREAD_S
    while time.monotonic() < end:
        await asyncio.sleep(0)
        if loop._ready:
            continue
        due = min((h.when() for h in loop._scheduled if not h.cancelled()), default=math.inf) - loop.time()
        if due < _SOON_S:
            await asyncio.sleep(max(0.0, due))
        elif _threads_work() and time.monotonic() < threads_end:
            await asyncio.sleep(_LOOK_S)
        else:
            return


def _threads_work() -> bool:
    app = active_app.get(None)
    return app is not None and any(worker.is_running for worker in app.workers)


@pytest.fixture(autouse=True, scope="session")
def _idle_by_the_loop() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("textual.app.wait_for_idle", idle)
        patch.setattr("textual.pilot.wait_for_idle", idle)
        yield
