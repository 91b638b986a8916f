"""A drain while all goes wrong around it: what was not drained is never called so."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pdtop.cluster.model import Role
from pdtop.operations.draining import DrainWatch, RouterSays, Sample
from pdtop.operations.model import DrainState
from tests.operations.test_draining import (
    DRAINED,
    DRAINING,
    OUT,
    PARTLY,
    SENDS,
    SILENT,
    UNKNOWN,
    at,
    last,
    states,
    watch,
)

DOWN = RouterSays(listed=None, takes_new=None, age_s=1.0)
BACK = RouterSays(listed=True, takes_new=True, inflight=0.0, age_s=0.0)
GONE = {"gone": True, "unknown_because": "nothing listens at its address"}


@pytest.mark.parametrize(("word", "state"), [(DOWN, PARTLY), (SILENT, PARTLY), (BACK, PARTLY)])
def test_a_router_that_flaps_every_second(word: RouterSays, state: DrainState) -> None:
    """The row of quiet readings begins anew each time; when it stands still, two are enough."""
    made = watch()
    flapping = [at(now, routers={"R1": OUT if now % 2 else word}) for now in range(1, 41)]
    assert states(made, flapping) == [DRAINING, state] * 20
    assert states(made, [at(41), at(42), at(43)]) == [DRAINING, DRAINED, DRAINED]


def test_one_router_of_two_flaps() -> None:
    made = watch()
    samples = [at(now, routers={"R1": OUT, "R2": OUT if now % 2 else BACK}) for now in range(1, 11)]
    assert states(made, samples) == [DRAINING, PARTLY] * 5
    assert made.progress(10).still_on == ("R2",)
    assert made.reappeared == ("R2",)
    assert "back at router R2" in made.progress(10).note


def test_a_drained_worker_is_not_drained_while_a_router_may_send() -> None:
    made = watch()
    assert states(made, [at(1), at(2)]) == [DRAINING, DRAINED]
    assert states(made, [at(3, routers={"R1": DOWN})]) == [PARTLY]
    assert states(made, [at(4), at(5)]) == [DRAINING, DRAINED]


def test_a_worker_that_restarts_again_and_again_is_never_drained_by_it() -> None:
    made = watch()
    assert states(made, [at(now, restarts=now) for now in range(1, 20)]) == [DRAINING] * 19
    assert "it restarted during the drain: what it held then was cut" in made.progress(19).note


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([at(1, 4)], UNKNOWN),  # it held something
        ([at(1, 4), at(2)], UNKNOWN),  # one quiet reading is not enough
        ([at(1), at(2)], DRAINED),
        ([at(1), at(2), at(3, 1)], UNKNOWN),  # it was drained, but is not any more
        ([at(1, routers={"R1": BACK}), at(2, routers={"R1": BACK})], UNKNOWN),
    ],
)
def test_a_worker_that_refuses_is_drained_only_if_it_was(before: list[Sample], expected: DrainState) -> None:
    made = watch()
    states(made, before)
    refusing = [at(now, None, **GONE) for now in range(4, 34)]
    assert states(made, refusing) == [expected] * 30
    assert last(made, at(35, None, **GONE)).left is None


def test_what_the_router_still_holds_is_not_gone_with_the_worker() -> None:
    made = watch()
    held = RouterSays(listed=True, takes_new=False, inflight=2.0, age_s=0.0)
    assert states(made, [at(1), at(2), at(3, None, routers={"R1": held}, **GONE)])[-1] is UNKNOWN
    assert "the routers hold 2" in made.progress(3).note


def test_a_worker_that_comes_back_after_it_refused_needs_new_quiet_readings() -> None:
    made = watch()
    back = [at(now, restarts=1) for now in (3, 4, 5)]  # the first of them tells of the restart
    found = states(made, [at(1, 2), at(2, None, **GONE), *back])
    assert found == [DRAINING, UNKNOWN, DRAINING, DRAINING, DRAINED]


@pytest.mark.parametrize("reading_at", [-3.0, 0.5, 1.0])
def test_old_numbers_again_and_again_make_nothing_drained(reading_at: float) -> None:
    made = watch()
    assert states(made, [at(now, reading_at=reading_at) for now in range(1, 60)]) == [DRAINING] * 59


def test_numbers_that_go_back_in_time_do_not_count() -> None:
    made = watch()
    assert states(made, [at(5), at(6, reading_at=4.0), at(7, reading_at=3.0)]) == [DRAINING] * 3
    assert states(made, [at(8)]) == [DRAINED]


def test_one_rank_that_is_missing_leaves_it_open() -> None:
    made = watch()
    missing = [at(now, None, unknown_because="1 of 2 DP ranks report") for now in range(1, 30)]
    assert states(made, missing) == [UNKNOWN] * 29
    assert made.progress(29).note == "1 of 2 DP ranks report"
    assert made.progress(29).left is None
    flapping = [at(now, 0.0 if now % 2 else None) for now in range(31, 51)]
    assert states(made, flapping) == [DRAINING, UNKNOWN] * 10


@pytest.mark.parametrize("jump", [-86400.0, -3600.0, 3600.0, 86400.0])
def test_a_wall_clock_that_jumps_drains_nothing_and_keeps_nothing(jump: float) -> None:
    made = watch(timeout_s=600.0)
    plain = [at(1, 3), at(2, 3), at(3), at(4)]
    jumped = [plain[0], *(replace(sample, wall=sample.wall + jump) for sample in plain[1:])]
    assert states(made, jumped[:2]) == [DRAINING] * 2
    assert made.overdue is False
    assert made.progress(2).deadline == made.since + 600.0 + jump  # as that clock will show it
    assert states(made, jumped[2:]) == [DRAINING, DRAINED]
    late = watch(timeout_s=600.0)
    states(late, [at(1, 3), replace(at(601, 3), wall=at(601).wall + jump)])
    assert late.overdue


@pytest.mark.parametrize("seed", range(40))
def test_drained_is_never_said_without_two_quiet_readings(seed: int) -> None:
    """Whatever comes: two readings of now after the stop, empty, no request between, all routers out."""
    chance = random.Random(seed)
    stopped = chance.choice([0.0, 5.0])
    made = DrainWatch("d", role=Role.DECODE, since=0.0, stopped_at=stopped)
    now, clear, said = 0.0, stopped, 0
    reading = at(0.0, finished=0.0)
    two = (reading, reading)  # the last readings
    was = False
    for _ in range(300):
        now += chance.choice([0.2, 1.0, 1.0, 2.0])
        gone = chance.random() < 0.08
        if not gone and chance.random() < 0.8:
            reading = at(
                now - chance.choice([0.0, 0.1]),
                chance.choice([0.0] * 9 + [1.0]),
                finished=(reading.finished or 0.0) + (chance.random() < 0.1),
                restarts=reading.restarts + (chance.random() < 0.03),
            )
            two = (two[1], reading)
        word = chance.choice([OUT] * 12 + [DOWN, SENDS, BACK])
        clear = clear if word is OUT else now
        wall = chance.choice([now, now + 1e6])
        sample = replace(reading, at=now, wall=wall, routers={"R1": word, "R2": OUT})
        made.feed(replace(sample, work=None, finished=None, gone=True) if gone else sample)
        drained = made.progress(now).state is DRAINED
        if drained and gone:
            assert was
        elif drained:
            said += 1
            assert word is OUT
            assert [one.work for one in two] == [0.0, 0.0]
            assert (two[0].reading_at or 0.0) >= clear - 1e-3
            assert (two[0].finished, two[0].restarts) == (two[1].finished, two[1].restarts)
        was = drained
    assert said
