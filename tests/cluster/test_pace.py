"""When to ask next: a grid while all is well, growing gaps with a cap while a target is dead."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from pdtop.cluster.model import State
from pdtop.cluster.pace import LONGEST_GAP_S, PATIENCE, REST_S, Pace, Schedule, after, gap
from tests.cluster.virtual_time import run


def test_the_grid_does_not_drift() -> None:
    schedule = Schedule(100.0)
    for now in (100.3, 102.1, 105.99):
        schedule.answered(now, 2.0)
    assert schedule.due == 106.0


def test_times_that_have_passed_are_not_caught_up_with() -> None:
    schedule = Schedule(100.0)
    schedule.answered(107.0, 2.0)
    assert schedule.due == 107.0


def test_gaps_grow_after_some_patience_up_to_a_cap() -> None:
    schedule = Schedule(0.0)
    gaps = []
    for _ in range(8):
        before = schedule.due
        schedule.failed(before, 2.0)
        gaps.append(schedule.due - before)
    assert gaps == [2.0, 2.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    schedule.answered(schedule.due, 2.0)
    assert schedule.failures == 0


def test_a_dead_target_is_left_alone_for_a_moment() -> None:
    schedule = Schedule(0.0)
    schedule.failed(2.0, 2.0)  # it took its whole time
    assert schedule.due == 2.0 + REST_S


@pytest.mark.parametrize(
    ("interval", "failures", "seconds"), [(30.0, 9, 30.0), (1.0, 0, 1.0), (1.0, 99, 10.0)]
)
def test_gap(interval: float, failures: int, seconds: float) -> None:
    assert gap(interval, failures) == seconds


@pytest.mark.parametrize(
    ("state", "failures"),
    [
        (State.OK, 0),
        (State.PARTIAL, 0),
        (State.HTTP_ERROR, 0),
        (State.METRICS_DISABLED, 0),
        (State.TIMEOUT, 1),
        (State.REFUSED, 1),
        (State.TLS, 1),
        (State.AUTH, 1),
    ],
)
def test_what_counts_as_a_failure(state: State, failures: int) -> None:
    schedule = Schedule(0.0)
    after(schedule, 0.0, state, 1.0)
    assert schedule.failures == failures


def test_sleepers_go_by_a_changed_interval_at_once() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        pace = Pace(60.0)
        schedule = Schedule(loop.time())
        asked: list[float] = []

        async def poll() -> None:
            while True:
                while not await pace.sleep_until(schedule.due):
                    schedule.repace(pace.interval_s)
                asked.append(loop.time() - began)
                schedule.answered(loop.time(), pace.interval_s)

        began = loop.time()
        task = asyncio.create_task(poll())
        await asyncio.sleep(5.0)
        pace.change(10.0)
        await asyncio.sleep(17.0)
        pace.change(pace.interval_s)  # no change, no waking up
        pace.change(30.0)
        await asyncio.sleep(40.0)
        task.cancel()
        return asked

    assert run(main()) == pytest.approx([0.0, 10.0, 20.0, 50.0])


def test_sleeping_for_ever_ends_with_waking() -> None:
    async def main() -> bool:
        pace = Pace(1.0)
        sleeper = asyncio.create_task(pace.sleep_until(inf))
        await asyncio.sleep(3600.0)
        assert not sleeper.done()
        pace.wake()
        return await sleeper

    assert run(main()) is False


def test_the_cap_is_soon_enough_for_an_operator() -> None:
    assert LONGEST_GAP_S <= 10.0
    assert PATIENCE >= 2
