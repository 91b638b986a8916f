"""Pools, headline and board: merged first, quantiles afterwards; what is not of now is in no sum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pdtop.cluster import assemble
from pdtop.cluster.address import Address
from pdtop.cluster.board import Board, Setting
from pdtop.cluster.model import Finding, Latency, Role, Router, Severity, State
from pdtop.cluster.readings import ListedWorker, RouterReading
from pdtop.cluster.router_watch import RouterWatch
from pdtop.cluster.targets import WorkerTarget
from pdtop.cluster.watch import About
from pdtop.config.schema import Config, Slo
from pdtop.metrics.distribution import Distribution
from tests.cluster.story import Pages, health, histogram, loads, page, rank

CASES = Path(__file__).parent.parent / "fixtures" / "cases"
INF = float("inf")


def target(key: str, role: Role, **more: float | bool) -> WorkerTarget:
    return WorkerTarget(key, key, role, Address.parse(key), "config", **more)  # type: ignore[arg-type]


def decode_page(running: float, **more: float) -> str:
    gauges = {
        "num_running_reqs": running,
        "num_queue_reqs": 0.0,
        "num_decode_prealloc_queue_reqs": 1.0,
        "num_decode_transfer_queue_reqs": 0.0,
        "token_usage": 0.5,
        **more,
    }
    return page(**gauges)


def board(*keys: str) -> Board:
    one = Board()
    one.workers_changed(tuple(target(key, Role.DECODE) for key in keys), ())
    return one


def test_pool_percentiles_come_from_added_buckets() -> None:
    """Case s16: a busy fast node and a quiet slow node; its pages hold inter_token_latency_seconds."""
    one = Board()
    for name in ("d1", "d2"):
        one.add_worker(About(name, name, Role.DECODE))
        text = (CASES / "s16-pool-p99-is-not-the-mean" / f"{name}.txt").read_text()
        one.metrics(name, Pages().read(0.0, text))
    snapshot = one.snapshot(0.0, 0.0, None)
    found = {worker.key: worker.tpot for worker in snapshot.workers}
    d1, d2, pool = found["d1"], found["d2"], snapshot.decode.tpot
    assert d1 is not None
    assert d2 is not None
    assert pool is not None
    quantiles = [
        q.value for q in (d1.quantile(0.99), d2.quantile(0.5), pool.quantile(0.5), pool.quantile(0.99)) if q
    ]
    assert quantiles == pytest.approx([0.066666667, 0.072, 0.012222222, 0.148], rel=1e-6)
    slow = d2.quantile(0.99)
    assert slow is not None
    assert (slow.at_least, slow.value) == (True, 0.16)
    assert pool.count == 1100
    assert pool.mean == pytest.approx(0.022727273)


def test_a_worker_that_went_away_is_in_no_sum() -> None:
    one, a, b = board("a:1", "b:1"), Pages(), Pages()
    one.metrics("a:1", a.read(0.0, decode_page(3)))
    one.metrics("b:1", b.read(0.0, decode_page(40)))
    assert one.snapshot(0.0, 0.0, 30.0).decode.running == 43
    one.metrics("b:1", b.fail(2.0, State.REFUSED))
    snapshot = one.snapshot(2.0, 0.0, 30.0)
    assert snapshot.decode.running == 3
    assert snapshot.decode.running_unknown == 1
    assert snapshot.decode.backlog.total == 1
    gone = snapshot.worker("b:1")
    assert gone is not None
    assert (gone.running, gone.stale, gone.age_s) == (40, True, 2.0)


def test_an_unknown_worker_makes_the_pools_backlog_a_lower_bound() -> None:
    one = board("a:1", "b:1")
    one.metrics("a:1", Pages().read(0.0, decode_page(3)))
    one.metrics("b:1", Pages().read(0.0, page(max_total_num_tokens=1)))
    decode = one.snapshot(0.0, 0.0, 30.0).decode
    assert (decode.backlog.total, decode.backlog.lower_bound) == (1, True)
    assert decode.running_unknown == 1


def test_usable_counts_what_can_take_a_request() -> None:
    one = board("a:1", "b:1", "c:1")
    for key, ready in (("a:1", True), ("b:1", False)):
        one.metrics(key, Pages().read(0.0, decode_page(1)))
        one.health(key, health(0.0, ready))
    decode = one.snapshot(0.0, 0.0, 30.0).decode
    assert (decode.total, decode.usable, decode.usable_unknown) == (3, 1, 1)


def test_hit_rate_of_a_pool_is_weighted_by_tokens() -> None:
    one = Board()
    tokens = "prefill_effective_tokens_total"
    for key, computed, hits in (("a", 900, 100), ("b", 0, 100)):
        one.add_worker(About(key, key, Role.PREFILL))
        pages = Pages()
        one.metrics(key, pages.read(0.0, page(**{tokens: {"input": 0, "device_hit": 0}})))
        one.metrics(key, pages.read(10.0, page(**{tokens: {"input": computed, "device_hit": hits}})))
    assert one.snapshot(10.0, 0.0, 30.0).prefill.hit_rate == pytest.approx(200 / 1100)


def latency(metric: str, *counts: float, source: str = "decode") -> Latency:
    return Latency(source, metric, Distribution((0.1, 0.2, INF), counts, 1.0))


def test_different_measures_are_not_added() -> None:
    merged = assemble.merged([latency("itl", 1, 2, 3), latency("tpot", 5, 5, 5), latency("tpot", 1, 1, 1)])
    assert merged is not None
    assert (merged.metric, merged.count) == ("tpot", 6)


def test_different_bounds_are_not_added() -> None:
    other = Latency("decode", "ttft", Distribution((0.5, INF), (1, 1), 0.3))
    merged = assemble.merged([latency("ttft", 1, 2, 3), other])
    assert merged is not None
    assert merged.distribution is None
    assert merged.quantile(0.5) is None


def router(ttft: Latency | None = None, prefill: Latency | None = None) -> Router:
    return Router("r", "", "smg", ttft=ttft, prefill_duration=prefill)


@pytest.mark.parametrize(
    ("own", "workers", "source"),
    [
        (latency("pd", 1, 2, 3, source="router"), latency("ttft", 1, 2, 3), "router"),
        (latency("pd", 0, 0, 0, source="router"), latency("ttft", 1, 2, 3), "decode"),
        (latency("pd", 0, 0, 0, source="router"), latency("ttft", 0, 0, 0), "router"),
        (None, latency("ttft", 1, 2, 3), "decode"),
        (latency("pd", 1, 2, 3, source="router"), None, "router"),
    ],
)
def test_where_the_headline_comes_from(own: Latency | None, workers: Latency | None, source: str) -> None:
    headline = assemble.headline_ttft([router(own)], workers, None)
    assert headline is not None
    assert headline.source == source


def test_prefill_part_is_the_routers_before_the_workers() -> None:
    own, workers = latency("pd_prefill", 1, 1, 1, source="router"), latency("ttft", 2, 2, 2, source="prefill")
    assert assemble.prefill_part([router(None, own)], workers) == own
    assert assemble.prefill_part([router()], workers) is workers


def test_shares_by_the_routers_count_else_by_the_workers_own() -> None:
    roles = {"p": Role.PREFILL, "a": Role.DECODE, "b": Role.DECODE}
    own = {"p": 8.0, "a": 5.0, "b": 5.0}
    assert assemble.shares(roles, {"a": 30.0, "b": 10.0}, own) == {"p": 1.0, "a": 0.75, "b": 0.25}
    assert assemble.shares(roles, {}, own) == {"p": 1.0, "a": 0.5, "b": 0.5}
    assert assemble.shares(roles, {"a": 0.0, "b": 0.0}, {}) == {}


def test_workers_that_only_a_router_speaks_of_are_shown() -> None:
    one, pages = Board(), Pages()
    one.add_router(RouterWatch("r"))
    name = "sgl_router_processed_requests_total"
    text = f"# TYPE {name} counter\n{name}" + '{{worker="http://a:1"}} {0}\n'
    one.router_metrics("r", pages.router(0.0, text.format(0)))
    one.router_metrics("r", pages.router(10.0, text.format(50)))
    only = one.snapshot(10.0, 0.0, 30.0).workers
    assert [(worker.key, worker.state, worker.share) for worker in only] == [("a:1", None, 1.0)]


def test_a_worker_under_two_names_is_one_row_with_both_opinions() -> None:
    one = Board()
    one.workers_changed((replace(target("a:1", Role.DECODE), aliases=("b:1",)),), ())
    one.add_router(RouterWatch("r"))
    listed = tuple(ListedWorker(key, f"http://{key}", Role.DECODE, load=2.0) for key in ("a:1", "b:1"))
    one.router("r", RouterReading(0.0, State.OK, workers=listed))
    workers = one.snapshot(0.0, 0.0, 30.0).workers
    assert [(w.key, len(w.opinions)) for w in workers] == [("a:1", 2)]


def test_goodput_is_of_the_headline() -> None:
    one = board("a:1")
    one.setting = Setting(config=Config(slo=Slo(ttft_p99_ms=200.0)))
    one.metrics("a:1", Pages().read(0.0, histogram("time_to_first_token_seconds", (5, 8, 9, 10, 10), 2)))
    goodput = one.snapshot(0.0, 0.0, None).goodput
    assert goodput is not None
    assert (goodput.ttft_share, goodput.tpot_share, goodput.worst) == (0.8, None, 0.8)


def test_trends_of_a_pool_get_one_point_a_tick() -> None:
    one, pages = board("a:1"), Pages()
    for at in (0.0, 1.0, 2.0):
        one.metrics("a:1", pages.read(at, decode_page(at)))
        snapshot = one.snapshot(at, 0.0, 30.0)
    one.snapshot(2.5, 0.0, 30.0, tick=False)
    assert list(snapshot.decode.trends["running"]) == [0, 1, 2]
    assert list(one.snapshot(3.0, 0.0, 30.0, tick=False).decode.trends["running"]) == [0, 1, 2]


def test_workers_that_stay_keep_their_past_and_those_that_go_are_forgotten() -> None:
    one, pages = board("a:1", "b:1"), Pages()
    one.metrics("a:1", pages.read(0.0, decode_page(3)))
    one.workers_changed(
        (target("a:1", Role.DECODE, weight=2.0, draining=True), target("c:1", Role.PREFILL)), ("odd",)
    )
    snapshot = one.snapshot(1.0, 0.0, 30.0)
    assert [worker.key for worker in snapshot.workers] == ["a:1", "c:1"]
    stayed = snapshot.workers[0]
    assert (stayed.running, stayed.weight, stayed.draining) == (3, 2.0, True)
    assert snapshot.notices == ("odd",)
    one.metrics("b:1", pages.read(1.0, decode_page(9)))
    assert one.snapshot(1.0, 0.0, 30.0).worker("b:1") is None


def test_a_restart_is_told_to_whoever_asks_for_identities() -> None:
    told: list[str] = []
    one, pages = Board(restarted=told.append), Pages()
    one.workers_changed((target("a:1", Role.DECODE),), ())
    one.metrics("a:1", pages.read(0.0, page(generation_tokens_total=50)))
    one.metrics("a:1", pages.read(2.0, page(generation_tokens_total=5)))
    assert told == ["a:1"]


def test_findings_of_others_are_among_those_of_the_snapshot() -> None:
    one = board()
    one.setting = Setting(given=(Finding(Severity.WARNING, "secret_in_file", "a key stands in the file"),))
    assert [finding.kind for finding in one.snapshot(0.0, 0.0, 30.0).findings] == ["secret_in_file"]


def test_policy_as_the_router_counts_it_else_as_the_config_says() -> None:
    config = Config.model_validate(
        {"prefill": {"policy": "cache_aware"}, "decode": {"policy": "power_of_two"}}
    )
    one = board("a:1")
    one.setting = Setting(config=config)
    assert one.snapshot(0.0, 0.0, 30.0).decode.policy == "power_of_two"
    one.add_router(RouterWatch("r"))
    name = "smg_worker_selection_total"
    text = f"# TYPE {name} counter\n{name}" + '{worker_type="decode",policy="random"} 9\n'
    one.router_metrics("r", Pages().router(0.0, text))
    assert one.snapshot(0.0, 0.0, 30.0).decode.policy == "random"


def test_thresholds_are_said_for_the_router_that_keeps_to_them() -> None:
    one = board()
    one.setting = Setting(config=Config())
    one.add_router(RouterWatch("r"))
    one.router("r", RouterReading(0.0, State.OK, 200, engine="pdtop", workers=()))
    assert one.snapshot(0.0, 0.0, 30.0).prefill.policy == "cache_aware 0.30 / 0.70"


def test_everything_was_asked() -> None:
    one = Board()
    asked = [one.asked]
    one.add_router(RouterWatch("r"))
    asked.append(one.asked)
    one.router("r", RouterReading(0.0, State.OK, 200, workers=(ListedWorker("", "http://a:1", Role.DECODE),)))
    one.router_metrics("r", Pages().router(0.0, ""))
    asked.append(one.asked)
    one.workers_changed((target("a:1", Role.DECODE),), ())
    one.loads("a:1", loads(0.0, rank()))
    asked.append(one.asked)
    assert asked == [True, False, True, False]
