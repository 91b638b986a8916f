"""Case s50: a slow worker fails every second probe; its own reachability is damped like the router's."""

from __future__ import annotations

import pytest

from pdtop.cluster.address import Address
from pdtop.cluster.board import Board, Setting
from pdtop.cluster.model import Role, Severity, State, Worker
from pdtop.cluster.targets import WorkerTarget
from pdtop.config.schema import Config
from pdtop.insight.reachability import FLAKY_FALLS, REMEMBERED, Reachability
from tests.cluster.story import Pages, page
from tests.insight.case import case
from tests.insight.scenes import kinds, one, scene, worker

KEY = "d2:30000"


def test_the_probes_of_the_case() -> None:
    given, expect = case("s50-probe-flapping")
    board, pages = Board(), Pages()
    thresholds = {
        "unhealthy_threshold": given["fail_after"],
        "healthy_threshold": given["recover_after"],
    }
    board.setting = Setting(config=Config.model_validate({"health": thresholds}))
    target = WorkerTarget(KEY, given["worker"], Role.DECODE, Address.parse(f"http://{KEY}"), "config")
    board.workers_changed((target,), ())
    seen: list[Worker] = []
    down_told: list[int] = []
    for number, answered in enumerate(given["probes"], 1):
        t = 2.0 * number
        text = page(num_running_reqs=1, num_queue_reqs=0)
        board.metrics(KEY, pages.read(t, text) if answered else pages.fail(t, State.TIMEOUT))
        snapshot = board.snapshot(t, 0.0, 60.0)
        seen.append(snapshot.workers[0])
        down_told += [number for finding in snapshot.findings if finding.kind == "down"]
    up = [one.reachable for one in seen]
    assert up.index(False) + 1 == expect["down_after_probe"]
    assert up.index(True, up.index(False)) + 1 == expect["up_after_probe"]
    changes = [number for number in range(2, len(up) + 1) if up[number - 1] is not up[number - 2]]
    assert changes == [12, 16]
    assert len(changes) == expect["state_changes"]
    watched = board.worker(KEY)
    assert watched is not None
    assert watched.reachability.changes == expect["state_changes"]
    assert seen[-1].flaky is expect["marked_flaky"]
    assert set(down_told) == {12, 14}  # never before it counts as down; at 13 and 15 it has just answered
    flaky = [finding for finding in snapshot.findings if finding.kind == "flaky"]
    assert [(finding.worker, finding.severity) for finding in flaky] == [(KEY, Severity.WARNING)]
    assert flaky[0].text == "flaky: 8 of its last 16 reads failed"
    assert all(one.usable is not False for one in seen[:11])
    assert all(one.usable is False for one in seen[11:15])


def outcomes(text: str, fail_after: int = 3, recover_after: int = 2) -> Reachability:
    found = Reachability(fail_after, recover_after)
    for letter in text:
        found.note(letter == "1")
    return found


@pytest.mark.parametrize(
    ("reads", "up", "changes", "flaky"),
    [
        ("", None, 0, False),
        ("0", False, 0, False),
        ("0001", True, 1, False),  # its first answer ever
        ("1", True, 0, False),
        ("100", True, 0, False),
        ("1000", False, 1, False),
        ("10001", False, 1, False),
        ("100011", True, 2, False),
        ("1000" + "0" * 2 * REMEMBERED + "1", False, 1, False),  # long down is not new
        ("10" * FLAKY_FALLS, True, 0, True),
        ("10" * (FLAKY_FALLS - 1), True, 0, False),  # two restarts
        ("10" * FLAKY_FALLS + "1" * REMEMBERED, True, 0, False),  # long ago
    ],
)
def test_damping(reads: str, up: bool | None, changes: int, flaky: bool) -> None:
    found = outcomes(reads)
    assert (found.up, found.changes, found.flaky) == (up, changes, flaky)


def test_thresholds_are_the_configs() -> None:
    assert outcomes("10", fail_after=1).up is False
    assert outcomes("101", fail_after=1, recover_after=1).up is True


def test_flaky_is_not_told_of_who_is_down_or_draining() -> None:
    often = {"flaky": True, "recent_reads": 16, "recent_failures": 8}
    assert one(scene(worker(**often), worker("d2")), "flaky").severity is Severity.WARNING
    gone = worker(state=State.REFUSED, usable=False, reachable=False, age_s=60.0, **often)
    assert "flaky" not in kinds(scene(gone, worker("d2")))
    assert "flaky" not in kinds(scene(worker(draining=True, **often), worker("d2")))
