"""Findings about work that waits."""

from __future__ import annotations

import pytest

from pdtop.cluster.model import Backlog, Rank, Role, Severity, State
from pdtop.insight.levels import DEFAULT_LEVELS
from pdtop.insight.pressure import grown_by
from tests.insight.scenes import kinds, latency, one, scene, waits, worker

LONG = tuple(float(n) for n in range(0, 60, 2))  # 30 points, growing to 58


@pytest.mark.parametrize(
    ("use", "prealloc", "retracted", "expected"),
    [
        (0.97, 7, 4, ["kv_pressure"]),  # case s04
        (0.79, 34, 3, ["kv_pressure"]),  # real capture of a pool that cannot take more
        (0.64, 39, 0, ["kv_pressure"]),  # real capture, saturated
        (0.92, 1, 0, ["kv_pressure"]),
        (0.70, 3, 0, []),  # a few that wait for the handshake
        (0.30, 40, 0, []),  # much room: it is the handshake
        (0.92, 0, 0, ["kv_nearly_full"]),
        (0.85, 0, 0, []),
    ],
)
def test_kv(use: float, prealloc: float, retracted: float, expected: list[str]) -> None:
    full = worker(
        kv_use=use,
        kv_use_worst=use,
        retracted=retracted,
        backlog=waits(queue=0, prealloc=prealloc, transfer=0),
    )
    assert [kind for kind in kinds(scene(full)) if kind.startswith("kv_")] == expected


def test_kv_is_critical_once_requests_are_put_back_from_a_full_memory() -> None:
    full = worker(kv_use_worst=0.98, retracted=2.0, backlog=waits(queue=0, prealloc=5, transfer=0))
    found = one(scene(full), "kv_pressure")
    assert found.severity is Severity.CRITICAL
    assert "5 wait for KV space, 2 put back" in found.text


def test_old_numbers_say_nothing_of_now() -> None:
    full = worker(kv_use_worst=0.98, retracted=2.0, stale=True)
    frozen = worker(kv_use_worst=0.98, retracted=2.0, state=State.FROZEN)
    assert "kv_pressure" not in kinds(scene(full)) + kinds(scene(frozen))


def test_the_full_rank_is_named_though_the_sum_has_room() -> None:
    """Case s02: four ranks, one at 98 %."""
    uses = (0.3, 0.98, 0.31, 0.33)
    ranks = tuple(
        Rank(str(n), 2.0 if n == 1 else 30.0, Backlog(17.0 if n == 1 else 1.0), use)
        for n, use in enumerate(uses)
    )
    found = one(
        scene(worker(ranks=ranks, kv_use=0.48, kv_use_worst=0.98, kv_worst_rank="1")), "rank_imbalance"
    )
    assert found.text == "rank 1 is full (98 %), the other 3 ranks average 31 %"
    assert "rank 1: running 2, backlog 17" in found.evidence


def test_evenly_full_ranks_are_no_imbalance() -> None:
    ranks = tuple(Rank(str(n), 2.0, Backlog(0.0), 0.95) for n in range(2))
    full = worker(ranks=ranks, kv_use=0.95, kv_use_worst=0.95, kv_worst_rank="0")
    assert "rank_imbalance" not in kinds(scene(full))


def test_requests_that_pile_up_before_bootstrap() -> None:
    piled = worker("p", Role.PREFILL, backlog=waits(queue=0, bootstrap=34))
    assert "34 requests" in one(scene(piled), "bootstrap_backlog").text
    assert kinds(scene(worker("p", Role.PREFILL, backlog=waits(queue=0, bootstrap=7)))) == []


def test_failed_transfers_in_the_window() -> None:
    assert "3 KV transfers failed" in one(scene(worker(transfer_failures=3.0)), "transfer_failures").text
    assert kinds(scene(worker(transfer_failures=0.0))) == []


def test_a_transfer_queue_from_which_nothing_arrives() -> None:
    waiting = {"backlog": waits(queue=0, prealloc=0, transfer=12)}
    stalled = worker(ttft=latency("ttft", 0.2, 0), **waiting)
    assert "12 waiting for KV, none arrived" in one(scene(stalled), "transfer_stalled").text
    moving = worker(ttft=latency("ttft", 0.2, 5), **waiting)
    unknown = worker(**waiting)
    assert "transfer_stalled" not in kinds(scene(moving)) + kinds(scene(unknown))


@pytest.mark.parametrize(
    ("running", "tokens", "trend", "found"),
    [
        (5.0, 0.0, (5.0, 5.0, 5.0), True),
        (5.0, 0.0, (5.0, None, 5.0), True),
        (5.0, 0.0, (0.0, 0.0, 5.0), False),  # it has only just begun
        (5.0, 0.0, (5.0,), False),
        (5.0, 3.0, (5.0, 5.0, 5.0), False),
        (5.0, None, (5.0, 5.0, 5.0), False),
        (0.0, 0.0, (0.0, 0.0, 0.0), False),
    ],
)
def test_running_without_progress(
    running: float, tokens: float | None, trend: tuple[float | None, ...], found: bool
) -> None:
    busy = worker(running=running, tokens_per_s=tokens, trends={"running": trend})
    assert ("running_without_progress" in kinds(scene(busy))) is found


@pytest.mark.parametrize(
    ("points", "window", "words"),
    [(3, None, "in 2 s"), (9, 4.0, "in 4 s"), (60, None, "in 9 s"), (60, 10.0, "in 9 s")],
)
def test_no_longer_watch_is_claimed_than_there_was(points: int, window: float | None, words: str) -> None:
    """Ten points of a tick are nine seconds, whatever window was asked for."""
    busy = worker(running=5.0, tokens_per_s=0.0, trends={"running": (5.0,) * points}, window_s=window)
    assert one(scene(busy), "running_without_progress").text == f"5 running, but not one token {words}"


@pytest.mark.parametrize(
    ("points", "grows"),
    [
        (LONG, True),
        (LONG[:29], False),  # not yet thirty seconds
        (tuple(reversed(LONG)), False),
        ((30.0,) * 30, False),
        ((0.0,) * 20 + (30.0,) * 10, False),  # one jump is a burst, not growth
        (tuple(n / 20 for n in LONG), False),  # small
        (tuple(None if n % 8 == 0 else n for n in LONG), False),  # too many gaps to tell
    ],
)
def test_growth(points: tuple[float | None, ...], grows: bool) -> None:
    assert (grown_by(points, 1.0, DEFAULT_LEVELS) is not None) is grows


def test_growth_is_counted_in_seconds_not_in_points() -> None:
    assert grown_by(LONG[::2], 2.0, DEFAULT_LEVELS) is not None


def test_a_backlog_that_grows() -> None:
    growing = worker(backlog=waits(queue=58, prealloc=0, transfer=0), trends={"backlog": LONG})
    found = one(scene(growing), "backlog_growing")
    assert (found.worker, found.severity) == ("d1", Severity.WARNING)
    assert "to 58 in 30 s" in found.text


def test_when_the_whole_pool_grows_it_is_said_once() -> None:
    workers = [worker(f"d{n}", backlog=waits(queue=58), trends={"backlog": LONG}) for n in range(3)]
    snapshot = scene(*workers)
    from dataclasses import replace

    pool = replace(snapshot.decode, trends={"backlog": tuple(3 * n for n in LONG)})
    found = one(replace(snapshot, decode=pool), "backlog_growing")
    assert (found.worker, found.pool) == (None, Role.DECODE)


@pytest.mark.parametrize(
    ("prefill", "inflight", "decode", "use", "words", "pool"),
    [
        (
            {"queue": 0, "bootstrap": 34},
            0,
            {"prealloc": 34, "transfer": 0},
            0.79,
            "out of KV memory",
            Role.DECODE,
        ),
        ({"queue": 0, "bootstrap": 34}, 0, {"prealloc": 34, "transfer": 0}, 0.2, "handshake", Role.DECODE),
        (
            {"queue": 0, "bootstrap": 0},
            20,
            {"prealloc": 0, "transfer": 20},
            0.5,
            "KV transfer is slow",
            Role.DECODE,
        ),
        (
            {"queue": 50, "bootstrap": 2},
            1,
            {"prealloc": 2, "transfer": 1},
            0.5,
            "compute-bound",
            Role.PREFILL,
        ),
        ({"queue": 7, "bootstrap": 2}, 1, {"prealloc": 2, "transfer": 1}, 0.5, None, None),
    ],
)
def test_bottleneck(
    prefill: dict[str, float],
    inflight: float,
    decode: dict[str, float],
    use: float,
    words: str | None,
    pool: Role | None,
) -> None:
    snapshot = scene(
        worker("p", Role.PREFILL, backlog=waits(**prefill), inflight=float(inflight)),
        worker("d", backlog=waits(queue=0, **decode), kv_use=use, kv_use_worst=use),
    )
    if words is None:
        assert "bottleneck" not in kinds(snapshot)
    else:
        found = one(snapshot, "bottleneck")
        assert words in found.text
        assert (found.pool, found.worker) == (pool, None)


def test_waiting_for_a_forward_pass_on_prefill_is_no_lack_of_room_on_decode() -> None:
    """Requests whose prefill has not run yet wait in decode's transfer queue, too."""
    snapshot = scene(
        *(
            worker(f"p{n}", Role.PREFILL, backlog=waits(queue=queue, bootstrap=4), inflight=1.0)
            for n, queue in enumerate((40, 50, 45))
        ),
        worker("d", backlog=waits(queue=0, prealloc=12, transfer=130), kv_use=0.9, kv_use_worst=0.9),
    )
    assert "compute-bound: 135" in one(snapshot, "bottleneck").text


def test_one_prefill_worker_that_all_wait_for_is_named() -> None:
    snapshot = scene(
        *(
            worker(f"p{n}", Role.PREFILL, backlog=waits(queue=queue, bootstrap=0), inflight=1.0)
            for n, queue in enumerate((0, 130, 2))
        ),
        worker("d", backlog=waits(queue=0, prealloc=0, transfer=130)),
    )
    assert one(snapshot, "bottleneck").text == "prefill waits on one worker: 130 of 132 queue at p1"


def test_handshakes_behind_a_slow_transfer_are_not_its_cause() -> None:
    """KV that does not arrive holds decode's memory: more decode workers would not help."""
    snapshot = scene(
        *(
            worker(f"p{n}", Role.PREFILL, backlog=waits(queue=0, bootstrap=39), inflight=inflight)
            for n, inflight in enumerate((0.0, 0.0, 73.0))
        ),
        worker(
            "d",
            backlog=waits(queue=0, prealloc=115, transfer=73),
            kv_use=0.88,
            kv_use_worst=0.88,
            running=4.0,
        ),
    )
    found = one(snapshot, "bottleneck")
    assert found.text == "KV transfer is slow: 73 being sent, 73 waiting for them; 73 of them from p2"
    assert "network of p2" in found.fix
    assert "more decode workers" not in one(snapshot, "kv_pressure").fix
