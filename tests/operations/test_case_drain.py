"""Cases s43 and s52 through readings, board, snapshot and drain watch, as the console does it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pdtop.cluster.answers import KeyUse
from pdtop.cluster.board import Board
from pdtop.cluster.interpret_router import router_metrics_reading
from pdtop.cluster.model import Health, Role, State
from pdtop.cluster.readings import Answer, ListedWorker, LoadRank, Loads, LoadsReading, RouterReading
from pdtop.cluster.router_watch import RouterWatch
from pdtop.cluster.watch import About
from pdtop.metrics.router_page import RouterPageReader
from pdtop.operations.draining import DrainWatch, sample_of
from pdtop.operations.model import DrainProgress, DrainState

CASES = Path(__file__).parents[1] / "fixtures" / "cases"
EPOCH = 1_700_000_000.0
KEY = "10.0.2.23:30001"
URL = f"http://{KEY}"

Story = dict[str, Any]


def case(name: str) -> Story:
    loaded: Story = json.loads((CASES / name / "case.json").read_text(encoding="utf-8"))
    return loaded


class Cluster:
    """A board with one watched worker and some routers, told what was read."""

    def __init__(self, routers: Mapping[str, str]) -> None:
        self.board = Board()
        self.engines = dict(routers)
        self.pages = {name: RouterPageReader() for name in routers}
        self.board.add_worker(About(KEY, KEY, Role.DECODE))
        for name in routers:
            self.board.add_router(RouterWatch(name))

    def loads(self, at: float, *, running: float, prealloc: float, transfer: float) -> None:
        waiting = prealloc + transfer
        rank = LoadRank(
            "0", EPOCH + at, running, waiting, 0.0, prealloc=prealloc, transfer=transfer, token_usage=0.1
        )
        self.board.loads(
            KEY, LoadsReading(at, State.OK, 200, loads=Loads(EPOCH + at, "0.5.23", Role.DECODE, (rank,)))
        )

    def lists(self, router: str, at: float, health: Health | None) -> None:
        """The router's list with the worker in this state; None: without it."""
        others = (ListedWorker("o", "http://10.0.2.24:30001", Role.DECODE, Health.HEALTHY),)
        entries = (ListedWorker("w", URL, Role.DECODE, health), *others) if health is not None else others
        self.board.router(
            router, RouterReading(at, State.OK, 200, engine=self.engines[router], workers=entries)
        )

    def counts(self, router: str, at: float, inflight: float | None, health: int) -> None:
        """The router's metrics page with its series of the worker; None: they were dropped."""
        lines = ["# TYPE smg_worker_requests_active gauge", "# TYPE smg_worker_health gauge"]
        if inflight is not None:
            lines += [f'smg_worker_requests_active{{worker="{URL}"}} {inflight:g}']
            lines += [f'smg_worker_health{{worker="{URL}"}} {health}']
        body = ("\n".join(lines) + "\n").encode()
        headers = {"content-type": "text/plain; version=0.0.4"}
        answer = Answer(at, 0.0, 200, headers, body)
        self.board.router_metrics(router, router_metrics_reading(answer, self.pages[router], KeyUse()))

    def look(self, watch: DrainWatch, at: float) -> DrainProgress:
        snapshot = self.board.snapshot(at, EPOCH + at, 30.0)
        worker = snapshot.worker(KEY)
        assert worker is not None
        watch.feed(sample_of(worker, snapshot, at))
        return watch.progress(at)


@pytest.mark.parametrize("engine", ["smg", "sglang-router", "pdtop"])
def test_s43_long_streams(engine: str) -> None:
    """The answer is the same whichever router it is.

    smg lists the worker as draining until it settles and then drops it, sglang-router 0.3.2 lets go at once
    and says 0 running, pdtop's own counts to the end.
    """
    story = case("s43-long-streams")
    given, expect = story["input"], story["expect"]
    cluster = Cluster({"R1": engine})
    watch = DrainWatch(
        KEY,
        role=Role.DECODE,
        since=EPOCH,
        stopped_at=0.0,
        quiet_needed=given["quiet_polls_needed"],
        timeout_s=given["deadline_s"],
    )
    seen: dict[str, DrainProgress] = {}
    held: dict[float, float] = {}
    for point in given["timeline"]:
        at = float(point["t"])
        parts = {part: float(point[part]) for part in ("running", "prealloc", "transfer")}
        cluster.loads(at, **parts)
        held[at] = sum(parts.values())
        settled = engine == "sglang-router" or (engine == "smg" and at > given["router_settle_s"])
        cluster.lists("R1", at, None if settled else Health.DRAINING)
        if engine == "sglang-router":
            cluster.counts("R1", at, 0.0, -1)
        else:
            cluster.counts("R1", at, None if settled else point["router_inflight"], 0)
        seen[str(point["t"])] = cluster.look(watch, at)
        assert not watch.overdue

    for moment, wanted in expect["at"].items():
        progress = seen[moment]
        assert progress.state == wanted["state"], moment
        if "left" in wanted:
            assert progress.left == wanted["left"], moment
        if "eta_s_between" in wanted:
            low, high = wanted["eta_s_between"]
            assert progress.eta_s is not None
            assert low <= progress.eta_s <= high
    safe = [moment for moment, progress in seen.items() if progress.safe_to_stop]
    assert float(safe[0]) == expect["safe_to_stop_at"]
    assert sum(held[float(moment)] for moment in safe) == expect["cut_streams"]
    for moment, progress in seen.items():  # the larger of both counts, and both agree in this story
        assert progress.left == held[float(moment)]
        assert progress.deadline == EPOCH + given["deadline_s"]
        assert progress.still_on == ()


@pytest.mark.parametrize("numbers", [False, True])
def test_s52_drain_on_one_router_of_two(numbers: bool) -> None:
    """Whether or not the worker's own numbers can be had, and however long it takes."""
    story = case("s52-drain-on-one-router-of-two")
    routers = story["input"]["routers"]
    drained = story["input"]["drain"]
    expect = story["expect"][drained]
    cluster = Cluster(dict.fromkeys(routers, "smg"))
    watch = DrainWatch(KEY, role=Role.DECODE, since=EPOCH, stopped_at=0.0)
    for at in (1.0, 3.0, 5.0, 7.0, 30.0):
        for name, listed in routers.items():
            said = listed[drained]
            ready = said is not None and said["state"] == "ready"
            cluster.lists(name, at, Health.HEALTHY if ready else None)
            cluster.counts(name, at, said["inflight"] if said is not None else None, 1)
        if numbers:
            cluster.loads(at, running=0.0, prealloc=0.0, transfer=0.0)
        progress = cluster.look(watch, at)
        assert progress.state == expect["state"] == DrainState.PARTLY_DRAINED
        assert list(progress.still_on) == expect["still_on"]
        assert progress.safe_to_stop is expect["safe_to_stop"]
        if numbers:  # the worker's own 0 does not outweigh what R2 sent
            assert progress.left == routers["R2"][drained]["inflight"]
