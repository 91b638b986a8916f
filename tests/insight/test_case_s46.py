"""Case s46: one prefill worker takes most of the traffic because of a shared system prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pdtop.cluster.board import Board, Setting
from pdtop.cluster.model import Backlog, Role, Severity, Snapshot, Worker
from pdtop.cluster.router_watch import RouterWatch
from pdtop.cluster.watch import About
from pdtop.config.schema import Config, Pool
from pdtop.insight.load import Work, count_load
from tests.cluster.story import Pages, page
from tests.insight.case import case
from tests.insight.scenes import kinds, one, opinion, scene, worker


def story(given: Mapping[str, Any]) -> Snapshot:
    """The window of the case: every worker's page at its end, the router's counts at both ends."""
    board = Board()
    thresholds = {name: given[name] for name in ("policy", "cache_aware_threshold", "load_balance_threshold")}
    board.setting = Setting(config=Config(prefill=Pool(**thresholds)))
    board.add_router(RouterWatch("router", span_s=given["window_s"]))
    pages, end = Pages(), float(given["window_s"])
    for at in (0.0, end):
        lines = ["# TYPE smg_worker_requests_total counter"]
        for name, told in given["P"].items():
            count = told["requests"] if at else 0
            url = f"http://{name.lower()}:30000"
            lines.append(f'smg_worker_requests_total{{worker="{url}",worker_type="prefill"}} {count}')
        board.router_metrics("router", pages.router(at, "\n".join(lines) + "\n"))
    for name, told in given["P"].items():
        key = f"{name.lower()}:30000"
        board.add_worker(About(key, name, Role.PREFILL))
        text = page(
            num_running_reqs=told["running"],
            num_queue_reqs=told["backlog"],
            num_prefill_bootstrap_queue_reqs=0,
            cache_hit_rate=told["cache_hit_rate"],
            token_usage=told["token_usage"],
        )
        board.metrics(key, Pages().read(end, text))
    return board.snapshot(end, 0.0, end)


def load(worker: Worker) -> float | None:
    return count_load(Work(worker.running, worker.backlog.total))


def test_the_hot_worker_of_the_case() -> None:
    given, expect = case("s46-prefix-affinity-hot-node")
    snapshot = story(given)
    workers = {w.name: w for w in snapshot.pool_workers(Role.PREFILL)}
    assert {name: w.share for name, w in workers.items()} == pytest.approx(expect["share"])
    assert snapshot.routers[0].max_over_mean == pytest.approx(expect["max_over_mean"])
    assert {name: load(w) for name, w in workers.items()} == expect["load"]
    found = [finding for finding in snapshot.findings if finding.kind == "hot_worker"]
    assert [finding.worker for finding in found] == [workers[expect["must_flag"]["node"]].key]
    assert expect["must_flag"]["reason"] in found[0].text
    assert "2 others without backlog" in found[0].text
    assert found[0].fix == expect["suggestion"]
    assert found[0].severity is Severity.WARNING
    for text in ("even share 33 %", "1000 dispatches", "hit rate 91 %", "load 34, the others 1"):
        assert text in found[0].evidence
    assert all("load_balance_threshold" not in finding.fix for finding in snapshot.findings)


def pool(hot: Mapping[str, object], others: Mapping[str, object]) -> tuple[Worker, ...]:
    shares = (0.82, 0.095, 0.085)
    well = [
        worker(f"p{n}", Role.PREFILL, share=share, hit_rate=0.9, opinions=(opinion(requests=1000 * share),))
        for n, share in enumerate(shares)
    ]
    return (replace(well[0], **hot), *(replace(w, **others) for w in well[1:]))  # type: ignore[arg-type]  # names fields


@pytest.mark.parametrize(
    ("hot", "others", "told"),
    [
        ({"backlog": Backlog(26.0)}, {"backlog": Backlog(2.0)}, True),  # busy, but much less so
        ({"backlog": Backlog(26.0)}, {"backlog": Backlog(40.0)}, False),  # the whole pool is busy
        ({"backlog": Backlog(26.0)}, {"kv_use_worst": 0.95}, False),  # no memory to take anything
        ({"backlog": Backlog(None)}, {"backlog": Backlog(None)}, True),  # not known is no lack of room
    ],
)
def test_hot_only_if_another_has_room(
    hot: Mapping[str, object], others: Mapping[str, object], told: bool
) -> None:
    assert ("hot_worker" in kinds(scene(*pool(hot, others)))) is told


def test_another_policy_has_another_knob() -> None:
    snapshot = scene(*pool({}, {}))
    bound = replace(snapshot, prefill=replace(snapshot.prefill, policy="consistent_hash"))
    assert "consistent_hash" in one(bound, "hot_worker").fix
