"""The drain's wait: fresh quiet readings, routers' words, time left, and what is said of odd moments."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from pdtop.cluster.answers import KeyUse
from pdtop.cluster.interpret import metrics_reading
from pdtop.cluster.model import Backlog, Health, Rank, Role, Router, RouterOpinion, Snapshot, State, Worker
from pdtop.cluster.readings import Answer, MetricsReading
from pdtop.cluster.watch import About, WorkerWatch
from pdtop.metrics.worker_page import WorkerPageReader
from pdtop.operations.draining import DrainWatch, RouterSays, Sample, sample_of
from pdtop.operations.model import DrainProgress, DrainState
from tests.insight.scenes import waits, worker

EPOCH = 1_700_000_000.0
DRAINING, PARTLY = DrainState.DRAINING, DrainState.PARTLY_DRAINED
DRAINED, UNKNOWN = DrainState.DRAINED, DrainState.UNKNOWN
OUT = RouterSays(listed=False, takes_new=False, age_s=0.0)
SENDS = RouterSays(listed=True, takes_new=True, inflight=3.0, age_s=0.0)
SILENT = RouterSays(listed=None, takes_new=None, age_s=40.0)


def at(now: float, work: float | None = 0.0, /, **more: object) -> Sample:
    """What a watched worker and router R1, that has let it go, say at ``now``; read at this moment."""
    plain = Sample(
        at=now,
        wall=EPOCH + now,
        reading_at=now,
        work=work,
        running=work,
        backlog=0.0 if work is not None else None,
        routers={"R1": OUT},
    )
    return replace(plain, **more)  # type: ignore[arg-type]  # each test names fields of Sample


def watch(
    role: Role = Role.DECODE, *, stopped_at: float | None = 0.0, timeout_s: float = 600.0
) -> DrainWatch:
    return DrainWatch(
        "d1:30001", role=role, since=EPOCH, stopped_at=stopped_at, timeout_s=timeout_s, by="ana@jump"
    )


def states(made: DrainWatch, samples: Iterable[Sample]) -> list[DrainState]:
    found = []
    for sample in samples:
        made.feed(sample)
        found.append(made.progress(sample.at).state)
    return found


def last(made: DrainWatch, *samples: Sample) -> DrainProgress:
    states(made, samples)
    return made.progress(samples[-1].at)


def overdue(made: DrainWatch) -> bool:
    return made.overdue


def back_at(made: DrainWatch) -> list[str]:
    return list(made.reappeared)


# Quiet readings


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([at(1, 2), at(2), at(3)], [DRAINING, DRAINING, DRAINED]),
        ([at(1), at(2, 1), at(3), at(4)], [DRAINING, DRAINING, DRAINING, DRAINED]),
        ([at(1), at(2, None), at(3), at(4)], [DRAINING, UNKNOWN, DRAINING, DRAINED]),
        # one reading looked at three times
        ([at(1), at(2, reading_at=1.0), at(3, reading_at=1.0 + 1e-9)], [DRAINING] * 3),
        # read before new work was stopped
        ([at(1, reading_at=-1.0), at(2, reading_at=-0.5), at(3), at(4)], [DRAINING] * 3 + [DRAINED]),
        # a request came and went between the two readings
        (
            [at(1, finished=7.0), at(2, finished=8.0), at(3, finished=8.0), at(4, finished=8.0)],
            [DRAINING] * 3 + [DRAINED],
        ),
        # the last request ends between the reading that shows it and the first quiet one
        ([at(1, 1, finished=7.0), at(2, finished=8.0), at(3, finished=8.0)], [DRAINING, DRAINING, DRAINED]),
        # work comes back after it was empty: no longer safe
        ([at(1), at(2), at(3, 1)], [DRAINING, DRAINED, DRAINING]),
        # an older look says nothing
        ([at(3, 1), at(1), at(2)], [DRAINING] * 3),
    ],
)
def test_drained_after_two_quiet_readings(samples: list[Sample], expected: list[DrainState]) -> None:
    assert states(watch(), samples) == expected


def test_parts_of_a_reading_may_be_older_than_the_reading() -> None:
    """A prefill worker's running is from its page, read every 2 s, the rest from loads, read every second."""
    times = [0.5, 1.5, 2.5, 3.5, 4.5]
    found = states(watch(Role.PREFILL), [at(now, mixed_s=2.0) for now in times])
    # 2.5 is the first whose page was surely read after the stop, 4.5 the next with another page
    assert found == [DRAINING] * 4 + [DRAINED]


def test_more_quiet_readings_can_be_asked_for() -> None:
    made = DrainWatch("d", role=Role.DECODE, since=EPOCH, stopped_at=0.0, quiet_needed=3)
    assert states(made, [at(1), at(2), at(3)]) == [DRAINING, DRAINING, DRAINED]


def test_nothing_counts_before_new_work_was_stopped() -> None:
    made = watch(stopped_at=None)
    assert states(made, [at(1), at(2), at(3, routers={"R1": SENDS})]) == [DRAINING] * 3
    made.stopped_at = 3.5
    assert states(made, [at(4), at(5)]) == [DRAINING, DRAINED]


def test_left_is_the_larger_of_both_counts() -> None:
    held = RouterSays(listed=True, takes_new=False, inflight=3.0, age_s=0.0)
    more = replace(held, inflight=2.0)
    made = watch()
    assert last(made, at(1, 4, routers={"R1": held, "R2": more})).left == 5.0
    assert last(made, at(2, 7, routers={"R1": held, "R2": more})).left == 7.0
    empty = last(made, at(3, 0, routers={"R1": held}), at(4, 0, routers={"R1": held}))
    assert (empty.state, empty.left) == (
        DRAINING,
        3.0,
    )  # a router that holds requests keeps it from being empty
    assert last(made, at(5), at(6)).safe_to_stop


def test_without_the_workers_word_nothing_is_known() -> None:
    held = RouterSays(listed=True, takes_new=False, inflight=3.0, age_s=0.0)
    found = last(
        watch(), at(1, None, routers={"R1": held}, unknown_because="it does not tell all its queues")
    )
    assert (found.state, found.left, found.eta_s) == (UNKNOWN, None, None)
    assert found.note == "it does not tell all its queues; the routers hold 3"


def test_empty_but_not_yet_sure_is_said() -> None:
    assert last(watch(), at(1)).note == "empty; 1 more quiet reading to be sure"
    assert last(watch(), at(1, reading_at=-1.0)).note == "empty; 2 more quiet readings to be sure"


# Routers


def test_partly_drained_until_all_routers_have_let_go() -> None:
    made = watch()
    both = {"R1": OUT, "R2": SENDS}
    found = last(made, at(1, routers=both), at(2, routers=both), at(3, routers=both))
    assert (found.state, found.still_on, found.safe_to_stop) == (PARTLY, ("R2",), False)
    found = last(made, at(4, routers={"R1": OUT, "R2": SILENT}))
    assert (found.state, found.still_on) == (PARTLY, ("R2",))
    assert found.note == "R2: not known whether new work is sent from there"
    agreed = {"R1": OUT, "R2": OUT}
    # R2's word is of 4.8: the reading of 4.5 is from before it
    late = replace(OUT, age_s=0.2)
    assert last(made, at(5, reading_at=4.5, routers={"R1": OUT, "R2": late})).state is DRAINING
    assert states(made, [at(6, routers=agreed), at(7, routers=agreed)]) == [DRAINING, DRAINED]


def test_a_word_from_before_the_stop_says_nothing_for_a_while_and_then_is_missing() -> None:
    made = watch(stopped_at=10.0)
    early = at(11, routers={"R1": replace(SENDS, age_s=2.0)})
    assert (last(made, early).state, last(made, early).still_on) == (DRAINING, ())
    late = last(made, at(25, routers={"R1": replace(OUT, age_s=16.0)}))
    assert (late.state, late.still_on) == (PARTLY, ("R1",))


def test_a_router_that_lists_it_again_is_named_and_can_be_put_right() -> None:
    made = watch()
    states(made, [at(1, 2), at(2, 2)])
    assert back_at(made) == []
    back = last(made, at(3, 2, routers={"R1": SENDS}))
    assert back_at(made) == ["R1"]
    assert (back.state, back.still_on) == (PARTLY, ("R1",))
    assert back.note == "back at router R1: it lists the worker again"
    assert states(made, [at(4), at(5)]) == [DRAINING, DRAINED]
    assert back_at(made) == []
    states(made, [at(6, routers={"R1": SENDS})])
    assert back_at(made) == ["R1"]
    assert not made.progress(6).safe_to_stop


def test_a_router_that_never_stopped_has_not_reappeared() -> None:
    made = watch()
    states(made, [at(1, routers={"R1": SENDS}), at(2, routers={"R1": SENDS})])
    assert back_at(made) == []


def test_without_any_router_nobody_knows_who_sends() -> None:
    found = last(watch(), at(1, routers={}), at(2, routers={}), at(3, routers={}))
    assert found.state is UNKNOWN
    assert found.note == "no router is watched: not known who sends to it"


# Not held by the router


def held(count: float, *, exact: bool = True) -> dict[str, RouterSays]:
    return {"R1": RouterSays(True, False, count, 0.0, exact)}


def test_requests_that_no_router_holds_are_named() -> None:
    made = watch()
    assert last(made, at(1, 5, routers=held(3))).orphans is None  # one reading could be a matter of moments
    found = last(made, at(2, 5, routers=held(3)))
    assert (found.orphans, found.note) == (2.0, "2 not held by the router")
    assert last(made, at(3, 5, routers=held(5))).orphans == 0.0
    assert last(made, at(4, 5, routers=held(5, exact=False))).orphans is None
    assert last(made, at(5, 5)).orphans is None  # let go: whatever the router says is no count


def test_kv_being_sent_is_no_orphan_but_keeps_a_prefill_worker_from_being_empty() -> None:
    made = watch(Role.PREFILL)
    sending = [at(now, 3.0, running=0.0, inflight=3.0, routers=held(0)) for now in (1, 2)]
    found = last(made, *sending)
    assert (found.state, found.left, found.orphans) == (DRAINING, 3.0, 0.0)
    assert found.note == "decode workers still read 3 KV transfers from it"


# Time


def test_eta_follows_the_fall_so_far() -> None:
    made = watch()
    states(made, [at(now, 40 - now // 2) for now in range(0, 41, 2)])
    assert made.progress(40).eta_s == pytest.approx(40, rel=0.1)


def test_eta_stands_odd_counts() -> None:
    made, dice = watch(), random.Random(7)
    for now in range(121):
        left = round(60 - now * 0.25 + dice.uniform(-2, 2))
        states(made, [at(now, 200 if now in (50, 118) else left)])
    assert made.progress(120).eta_s == pytest.approx(120, rel=0.25)


@pytest.mark.parametrize("left", [[9, 9, 9, 9, 9], [5, 6, 7, 8, 9], [20, 19]])
def test_no_eta_where_it_does_not_fall_or_is_too_young(left: list[float]) -> None:
    made = watch()
    states(made, [at(10 * index, count) for index, count in enumerate(left)])
    assert made.progress(10 * len(left) - 10).eta_s is None


def test_the_deadline_passes_and_nothing_else_happens() -> None:
    made = watch(timeout_s=10.0)
    states(made, [at(9, 2)])
    assert not overdue(made)
    found = last(made, at(10, 2))
    assert overdue(made)
    assert (found.state, found.deadline, found.since, found.by) == (DRAINING, EPOCH + 10, EPOCH, "ana@jump")
    made.timeout_s = 100.0
    assert not overdue(made)
    made.timeout_s = 10.0
    states(made, [at(11), at(12)])
    assert not overdue(made)  # drained, if late


@pytest.mark.parametrize("moved", [-3600.0, 3600.0])
def test_a_clock_that_is_set_moves_no_deadline(moved: float) -> None:
    made = watch(timeout_s=10.0)
    states(made, [at(1, 2), replace(at(9, 2), wall=EPOCH + 9 + moved)])
    assert not overdue(made)
    assert made.progress(9.5).deadline == EPOCH + 10 + moved  # as the clock says it now
    states(made, [replace(at(10, 2), wall=EPOCH + 10 + moved)])
    assert overdue(made)
    made.wait_longer(5.0)
    assert not overdue(made)
    states(made, [replace(at(15, 2), wall=EPOCH + 15 + moved)])
    assert overdue(made)


def test_a_watch_taken_up_later_counts_from_the_request() -> None:
    made = DrainWatch("d", role=Role.DECODE, since=EPOCH - 3600, stopped_at=0.0, timeout_s=1800)
    states(made, [at(1, 4)])
    assert overdue(made)


def test_a_worker_that_is_not_seen_any_more_is_not_known() -> None:
    made = watch(timeout_s=20.0)
    assert made.progress(0.0).state is UNKNOWN
    assert made.progress(0.0).note == "not read yet"
    states(made, [at(1), at(2)])
    found = made.progress(14.0)
    assert (found.state, found.left, found.note) == (UNKNOWN, None, "it has not been seen for 12 s")
    assert not overdue(made)
    made.progress(21.0)
    assert overdue(made)


# Gone and restarted


def test_gone_is_not_drained_but_what_was_drained_may_go() -> None:
    gone = at(3, None, gone=True, unknown_because="nothing listens at its address")
    lost = watch()
    assert states(lost, [at(1, 4), replace(gone, at=2), gone]) == [DRAINING, UNKNOWN, UNKNOWN]
    assert lost.progress(3).note == "nothing listens at its address"
    stopped = watch()
    assert states(stopped, [at(1), at(2), gone]) == [DRAINING, DRAINED, DRAINED]
    assert stopped.progress(3).note == "it was drained and does not answer any more"
    back = replace(gone, at=4, routers={"R1": SENDS})
    assert states(stopped, [back]) == [PARTLY]


def test_a_restart_is_said_and_needs_new_quiet_readings() -> None:
    made = watch()
    found = states(made, [at(1, 4), at(2, restarts=1), at(3, restarts=1), at(4, restarts=1)])
    assert found == [DRAINING, DRAINING, DRAINING, DRAINED]
    assert made.progress(4).note == "it restarted during the drain: what it held then was cut"


# Out of a snapshot


def router(name: str = "R1", /, **more: object) -> Router:
    plain = Router(name, f"http://{name}", "smg", state=State.OK, age_s=0.5, workers=4)
    return replace(plain, **more)  # type: ignore[arg-type]  # each test names fields of Router


def scene(*routers: Router) -> Snapshot:
    return Snapshot(7, "c", EPOCH, 30.0, 2.0, routers=routers)


def says(seen: Worker, *routers: Router) -> RouterSays:
    return sample_of(seen, scene(*routers), 100.0).routers["R1"]


def opinion(health: Health | None = None, /, **more: object) -> RouterOpinion:
    return replace(RouterOpinion("R1", health=health), **more)  # type: ignore[arg-type]  # as above


def test_numbers_of_a_worker() -> None:
    seen = worker(running=2.0, backlog=waits(queue=1, transfer=2), age_s=0.4, finished=9.0, resets=1)
    sample = sample_of(seen, scene(router()), 100.0)
    assert (sample.at, sample.wall, sample.reading_at) == (100.0, EPOCH, 99.6)
    assert (sample.work, sample.running, sample.backlog, sample.inflight) == (5.0, 2.0, 3.0, None)
    assert (sample.finished, sample.restarts, sample.mixed_s) == (9.0, 1, 2.0)
    paged = sample_of(replace(seen, source="/metrics"), scene(), 100.0)
    assert (paged.mixed_s, paged.routers) == (0.0, {})


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (worker(state=None, running=None), "it was not read yet"),
        (
            worker(state=State.REFUSED, stale=True),
            "nothing listens at its address: stopped or crashed, what it held cannot be counted",
        ),
        (worker(state=State.TIMEOUT, stale=True, age_s=42.0), "no new numbers from it for 42 s: timeout"),
        (worker(state=State.FROZEN, stale=True, age_s=42.0), "its numbers have not moved for 42 s"),
        (worker(stale=True, age_s=12.0), "no new numbers from it for 12 s"),
        (
            worker(ranks=(Rank("0", 0.0, Backlog(0.0), 0.0),), ranks_expected=4),
            "1 of 4 DP ranks report",
        ),
        (worker(backlog=Backlog(0.0, lower_bound=True)), "it does not tell all its queues"),
        (worker(running=None), "it does not tell what runs"),
        (worker("p", Role.PREFILL, running=0.0, inflight=None), "it does not tell what is being sent"),
    ],
)
def test_what_is_not_known_is_not_zero(seen: Worker, why: str) -> None:
    sample = sample_of(seen, scene(router()), 100.0)
    assert (sample.work, sample.running, sample.backlog) == (None, None, None)
    assert sample.unknown_because == why
    assert sample.gone is (seen.state in (State.REFUSED, State.TIMEOUT))


@pytest.mark.parametrize(
    ("opinions", "engine", "expected"),
    [
        ((opinion(listed=False),), "sglang-router", RouterSays(False, False, None, 0.5)),
        (
            (opinion(Health.DRAINING, inflight=3.0),),
            "smg",
            RouterSays(True, False, 3.0, 0.5, exact=True),
        ),
        ((opinion(Health.HEALTHY, inflight=3.0),), "smg", RouterSays(True, True, 3.0, 0.5)),
        ((opinion(Health.UNHEALTHY),), "smg", RouterSays(True, True, None, 0.5)),
        ((opinion(inflight=-1.0),), "vllm-router", RouterSays(True, True, None, 0.5)),
        # listed under two names, one of them let go
        (
            (opinion(listed=False), opinion(Health.HEALTHY, inflight=2.0)),
            "smg",
            RouterSays(True, True, 2.0, 0.5),
        ),
        ((), "smg", RouterSays(None, None, None, 0.5)),
    ],
)
def test_what_a_router_says(opinions: tuple[RouterOpinion, ...], engine: str, expected: RouterSays) -> None:
    assert says(worker(opinions=opinions), router(engine=engine)) == expected


@pytest.mark.parametrize(
    "bad",
    [
        router(state=State.REFUSED),
        router(state=State.AUTH),
        router(list_stale=True),
        router(workers=None),
        router(age_s=None),
        router(age_s=11.0),
    ],
)
def test_a_list_that_is_not_of_now_is_no_word(bad: Router) -> None:
    gone = worker(opinions=(opinion(listed=False),))
    assert says(gone, bad) == RouterSays(None, None, None, bad.age_s)
    # its metrics page may still tell that it sends
    ready = worker(opinions=(opinion(Health.HEALTHY, inflight=2.0),))
    assert says(ready, bad) == RouterSays(None, True, None, bad.age_s)


def test_finished_requests_come_from_a_page_that_is_of_now() -> None:
    watched = WorkerWatch(About("d1:30001", "d1", Role.DECODE))
    page = b'# TYPE sglang:num_requests_total counter\nsglang:num_requests_total{model_name="m"} 7.0\n'
    answer = Answer(1.0, 0.0, 200, {"content-type": "text/plain; version=0.0.4"}, page)
    watched.observe_metrics(metrics_reading(answer, WorkerPageReader(), KeyUse()))
    assert watched.view(1.5, 30.0).finished == 7.0
    watched.observe_metrics(MetricsReading(3.0, State.TIMEOUT))
    assert watched.view(3.5, 30.0).finished is None


def test_every_router_is_asked_of_its_own() -> None:
    seen = worker(opinions=(opinion(listed=False), RouterOpinion("R2", health=Health.HEALTHY)))
    sample = sample_of(seen, scene(router("R1"), router("R2"), router("R3")), 100.0)
    assert {name: word.takes_new for name, word in sample.routers.items()} == {
        "R1": False,
        "R2": True,
        "R3": None,
    }
