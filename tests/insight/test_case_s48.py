"""Case s48: the transfer queue stands still, failures climb, nothing new starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdtop.cluster.board import Board
from pdtop.cluster.model import Finding, Role, Severity, Snapshot, State
from pdtop.cluster.watch import About
from pdtop.insight.standstill import Standstill
from tests.cluster.story import Pages, histogram, loads, page, rank
from tests.insight.case import case
from tests.insight.scenes import kinds, one, scene, waits, worker


def stuck(snapshot: Snapshot) -> Finding | None:
    return next((finding for finding in snapshot.findings if finding.kind == "transfer_stalled"), None)


def test_stuck_from_the_first_poll_shown_at_the_fourth() -> None:
    given, expect = case("s48-transfer-queue-stuck")
    board, pages = Board(), Pages()
    key, name = "d2:30000", given["worker"]
    board.add_worker(About(key, name, Role.DECODE))
    told: dict[float, Finding | None] = {}
    for poll in given["polls"]:
        text = page(
            num_running_reqs=poll["running"],
            num_queue_reqs=0,
            num_decode_prealloc_queue_reqs=poll["prealloc"],
            num_decode_transfer_queue_reqs=poll["transfer"],
            generation_tokens_total=poll["generation_tokens_total"],
            num_transfer_failed_reqs_total=poll["num_transfer_failed_reqs_total"],
        )
        board.metrics(key, pages.read(poll["t"], text))
        snapshot = board.snapshot(poll["t"], 0.0, 60.0)
        told[poll["t"]] = stuck(snapshot)
    wanted = expect["must_flag"]
    assert next(t for t, found in told.items() if found is not None) == wanted["first_shown_at"]
    for t, found in told.items():
        if found is None:
            continue
        assert (found.worker, found.severity) == (key, Severity.CRITICAL)
        assert wanted["reason"] in found.text
        assert found.since_s is not None
        assert t - found.since_s == wanted["since_t"]
        assert found.fix.startswith(
            "not decode's compute: check the transfer network and the prefill workers"
        )
        assert "transfer queue 12 in" in found.evidence
        assert "0.7/s failed transfers, running 3, 30/s tokens" in found.evidence
    worker = snapshot.workers[0]
    assert worker.name == wanted["node"]
    assert worker.transfer_failures_per_s == pytest.approx(expect["transfer_failures_per_s"])
    assert worker.tokens_per_s == pytest.approx(expect["tok_per_s"])


def test_a_queue_that_only_looks_still_is_not_stuck() -> None:
    """First tokens come out of it although its length happens to stay the same."""
    board, pages = Board(), Pages()
    board.add_worker(About("d:1", "d", Role.DECODE))
    for t in range(6):
        done = [5 * t] * 5
        text = page(num_decode_transfer_queue_reqs=12) + histogram("time_to_first_token_seconds", done, 1.0)
        board.metrics("d:1", pages.read(10.0 * t, text))
        assert stuck(board.snapshot(10.0 * t, 0.0, 60.0)) is None


def test_loads_tell_it_sooner_than_the_page() -> None:
    """Once a second, and held back for ten."""
    board = Board()
    board.add_worker(About("d:1", "d", Role.DECODE))
    board.metrics("d:1", Pages().read(0.0, page(num_running_reqs=3)))
    told = []
    for t in range(14):
        board.loads("d:1", loads(float(t), rank(running=3, waiting=12, transfer=12.0, prealloc=0.0)))
        told.append(stuck(board.snapshot(float(t), 0.0, 60.0)) is not None)
    assert told.index(True) == 10


def test_the_prefill_workers_that_send_are_named() -> None:
    still = worker(
        "d", backlog=waits(transfer=12), running=3.0, transfer_still_s=40.0, transfer_still_reads=5
    )
    snapshot = scene(
        still,
        worker("p1", Role.PREFILL, inflight=9.0),
        worker("p2", Role.PREFILL, inflight=0.0),
        worker("p3", Role.PREFILL, state=State.REFUSED, usable=False, stale=True),
    )
    found = one(snapshot, "transfer_stalled")
    assert found.evidence.endswith("; prefill: p1 inflight 9, p3 refused")
    assert found.since_s == 40.0


def test_what_prefill_still_computes_is_not_stuck_in_transfer() -> None:
    still = worker("d", backlog=waits(transfer=12), transfer_still_s=40.0, transfer_still_reads=5)
    at_work = worker("p", Role.PREFILL, inflight=0.0, running=8.0)
    assert "transfer_stalled" not in kinds(scene(still, at_work))
    assert "transfer_stalled" in kinds(scene(still, replace(at_work, running=0.0)))


def test_standing_still() -> None:
    queue = Standstill()
    seen = []
    for at, waiting, started in [
        (0.0, 0.0, None),
        (1.0, 5.0, None),
        (2.0, 5.0, None),
        (3.0, 5.0, 7.0),
        (4.0, 5.0, 7.0),
        (5.0, 6.0, 7.0),
        (6.0, None, 7.0),
    ]:
        queue.note(at, waiting, started)
        seen.append((queue.reads, queue.since))
    assert seen == [(0, None), (1, 1.0), (2, 1.0), (1, 3.0), (2, 3.0), (1, 5.0), (0, None)]
