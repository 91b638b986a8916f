"""The worker watch: which source a number comes from, what is unknown, what is old, who can take work."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pdtop.cluster.model import Breaker, Health, Identity, Role, RouterOpinion, State
from pdtop.cluster.readings import InfoReading, LoadRank
from pdtop.cluster.watch import About, WorkerWatch
from tests.cluster.story import LABELS, Pages, health, histogram, info, loads, no_loads, page, rank

DECODE = page(
    num_running_reqs=7,
    num_queue_reqs=1,
    num_decode_prealloc_queue_reqs=2,
    num_decode_transfer_queue_reqs=3,
    token_usage=0.4,
)


def watch(role: Role = Role.DECODE, **about: float | bool | tuple[str, ...]) -> WorkerWatch:
    return WorkerWatch(About("k", "w", role, **about))  # type: ignore[arg-type]  # a few keywords of a test


def test_queues_of_the_page_while_there_are_no_loads() -> None:
    one = watch()
    one.observe_metrics(Pages().read(0.0, DECODE))
    one.observe_loads(no_loads(0.1))
    worker = one.view(1.0, 30.0)
    assert (worker.state, worker.source, worker.running) == (State.OK, "/metrics", 7)
    assert worker.backlog.total == 6
    assert dict(worker.backlog.parts) == {"queue": 1, "prealloc": 2, "transfer": 3}
    assert not worker.backlog.lower_bound
    assert worker.kv_use == worker.kv_use_worst == 0.4
    assert worker.age_s == 1.0
    assert not worker.stale


def test_fresh_loads_win_over_gauges_that_may_lag_by_thirty_seconds() -> None:
    one = watch()
    one.observe_metrics(Pages().read(0.0, DECODE))
    one.observe_loads(
        loads(0.5, rank(running=1, waiting=0, queue=0, prealloc=0, transfer=0, token_usage=0.1))
    )
    worker = one.view(1.0, 30.0)
    assert (worker.source, worker.running, worker.backlog.total) == ("/v1/loads", 1, 0)
    assert worker.kv_use == 0.1
    assert worker.age_s == 0.5


def test_loads_that_grew_old_give_way_to_the_page() -> None:
    one, pages = watch(), Pages()
    one.observe_loads(loads(0.0, rank(running=1)))
    one.observe_metrics(pages.read(6.0, DECODE))
    assert one.view(6.5, 30.0).source == "/metrics"


def test_prefill_takes_running_from_the_page_since_loads_always_say_zero() -> None:
    one = watch(Role.PREFILL)
    text = page(num_running_reqs=3, num_queue_reqs=0, num_prefill_bootstrap_queue_reqs=0)
    one.observe_metrics(Pages().read(0.0, text))
    one.observe_loads(loads(0.0, rank(running=0, waiting=5, queue=1, bootstrap=4, inflight=2)))
    worker = one.view(0.1, 30.0)
    assert (worker.source, worker.running) == ("/v1/loads", 3)
    assert worker.backlog.total == 5
    assert worker.inflight == 2


def test_prefill_without_a_page_does_not_know_how_many_run() -> None:
    one = watch(Role.PREFILL)
    one.observe_metrics(Pages().read(0.0, "", 404))
    one.observe_loads(loads(0.0, rank(running=0, waiting=5, queue=1, bootstrap=4)))
    worker = one.view(0.1, 30.0)
    assert worker.state is State.METRICS_DISABLED
    assert worker.running is None
    assert worker.backlog.total == 5
    assert "--enable-metrics" in worker.fix


def test_a_part_that_is_not_exported_makes_the_sum_a_lower_bound() -> None:
    one = watch()
    one.observe_metrics(Pages().read(0.0, page(num_queue_reqs=2)))
    backlog = one.view(0.0, 30.0).backlog
    assert (backlog.total, backlog.lower_bound) == (2, True)
    assert backlog.parts["prealloc"] is None


def test_a_worker_that_has_served_nothing_knows_nothing_and_shows_no_zero() -> None:
    one = watch()
    one.observe_metrics(Pages().read(0.0, page(max_total_num_tokens=1000)))
    worker = one.view(0.0, 30.0)
    assert worker.running is None
    assert worker.backlog.total is None
    assert worker.kv_use is None
    assert worker.ttft is None
    assert worker.identity.kv_capacity_tokens == 1000


@pytest.mark.parametrize("state", [State.REFUSED, State.TIMEOUT, State.TLS])
def test_an_unreachable_worker_keeps_its_last_numbers_as_old_ones(state: State) -> None:
    one, pages = watch(), Pages()
    one.observe_metrics(pages.read(0.0, DECODE))
    one.observe_metrics(pages.fail(4.0, state, "no luck"))
    worker = one.view(5.0, 30.0)
    assert (worker.state, worker.reason, worker.stale) == (state, "no luck", True)
    assert (worker.running, worker.age_s, worker.missed_polls) == (7, 5.0, 1)
    assert (worker.usable, worker.reachable) == (None, True)  # one failure may be chance
    for at in (5.0, 6.0):
        one.observe_metrics(pages.fail(at, state, "no luck"))
    worker = one.view(6.0, 30.0)
    assert (worker.usable, worker.unusable_because) == (False, "does not answer")


def test_a_worker_that_never_answered_is_not_waited_for() -> None:
    one, pages = watch(), Pages()
    one.observe_metrics(pages.fail(0.0, State.REFUSED))
    assert (one.view(0.0, 30.0).usable, one.view(0.0, 30.0).unusable_because) == (False, "does not answer")
    one.observe_metrics(pages.read(2.0, DECODE))
    assert one.view(2.0, 30.0).reachable is True


def test_a_worker_that_comes_back_has_to_answer_twice() -> None:
    one, pages = watch(), Pages()
    one.observe_metrics(pages.read(0.0, DECODE))
    for at in (2.0, 4.0, 6.0):
        one.observe_metrics(pages.fail(at, State.TIMEOUT))
    one.observe_metrics(pages.read(8.0, DECODE))
    assert one.view(8.0, 30.0).unusable_because == "has only just answered again"
    one.observe_metrics(pages.read(10.0, DECODE))
    assert one.view(10.0, 30.0).unusable_because == ""


def test_while_another_endpoint_answers_a_worker_is_not_down() -> None:
    one, pages = watch(), Pages()
    for at in (0.0, 2.0, 4.0, 6.0):
        one.observe_loads(loads(at, rank(running=4, waiting=1)))
        one.observe_metrics(pages.fail(at + 0.5, State.TIMEOUT))
    assert one.view(7.0, 30.0).reachable is True


def test_a_worker_known_by_loads_alone_keeps_them_as_old_ones() -> None:
    one, pages = watch(), Pages()
    one.observe_metrics(pages.read(0.0, "", 404))
    one.observe_loads(loads(0.0, rank(running=4, waiting=1)))
    one.observe_metrics(pages.fail(6.0, State.REFUSED))
    worker = one.view(7.0, 30.0)
    assert (worker.running, worker.stale, worker.age_s) == (4, True, 7.0)


def test_numbers_that_nobody_renews_become_old_without_any_failure() -> None:
    one = watch()
    one.observe_metrics(Pages().read(0.0, DECODE))
    assert not one.view(10.0, 30.0).stale
    assert one.view(10.5, 30.0).stale


def test_rates_and_latencies_are_of_the_window_not_of_the_lifetime() -> None:
    one, pages = watch(), Pages()
    ttft = "time_to_first_token_seconds"
    one.observe_metrics(
        pages.read(0.0, histogram(ttft, (90, 100, 100, 100, 100), 5) + page(generation_tokens_total=100))
    )
    one.observe_metrics(
        pages.read(10.0, histogram(ttft, (90, 100, 110, 110, 110), 8) + page(generation_tokens_total=600))
    )
    worker = one.view(10.0, 30.0)
    assert worker.generated_tokens_per_s == worker.tokens_per_s == 50
    assert worker.ttft is not None
    assert (worker.ttft.source, worker.ttft.metric) == ("decode", f"sglang:{ttft}")
    assert worker.ttft.count == 10
    assert worker.ttft.mean == pytest.approx(0.3)
    lifetime = one.view(10.0, None).ttft
    assert lifetime is not None
    assert lifetime.count == 110


def test_live_tokens_win_over_those_counted_at_the_end_of_a_request() -> None:
    one, pages = watch(), Pages()
    one.observe_metrics(pages.read(0.0, page(generation_tokens_total=0, realtime_tokens_total={"decode": 0})))
    one.observe_metrics(
        pages.read(10.0, page(generation_tokens_total=0, realtime_tokens_total={"decode": 900}))
    )
    assert one.view(10.0, 30.0).tokens_per_s == 90


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("request_time_per_output_token_seconds", "inter_token_latency_seconds"), 0),
        (("inter_token_latency_seconds", "time_per_output_token_seconds"), 0),
        (("time_per_output_token_seconds",), 0),
    ],
)
def test_tpot_by_release(names: tuple[str, ...], chosen: int) -> None:
    one = watch()
    text = "".join(histogram(name, (1, 2, 3, 4, 4 + index), 1.0) for index, name in enumerate(names))
    one.observe_metrics(Pages().read(0.0, text))
    tpot = one.view(0.0, None).tpot
    assert tpot is not None
    assert tpot.metric == f"sglang:{names[chosen]}"
    assert tpot.count == 4


def test_hit_rate_is_of_the_window_and_unknown_when_nothing_was_looked_up() -> None:
    one, pages = watch(Role.PREFILL), Pages()
    sticky = page(cache_hit_rate=0.9)
    tokens = "prefill_effective_tokens_total"
    one.observe_metrics(
        pages.read(0.0, sticky + page(**{tokens: {"input": 100, "device_hit": 100, "host_hit": 0}}))
    )
    one.observe_metrics(
        pages.read(5.0, sticky + page(**{tokens: {"input": 175, "device_hit": 120, "host_hit": 5}}))
    )
    assert one.view(5.0, 30.0).hit_rate == 0.25
    one.observe_metrics(
        pages.read(10.0, sticky + page(**{tokens: {"input": 175, "device_hit": 120, "host_hit": 5}}))
    )
    assert one.view(10.0, 4.0).hit_rate is None
    other = watch(Role.PREFILL)
    other.observe_metrics(Pages().read(0.0, sticky))
    assert other.view(0.0, 30.0).hit_rate == 0.9


def test_a_restart_is_counted_and_no_rate_goes_below_zero() -> None:
    one, pages = watch(), Pages()
    assert not one.observe_metrics(pages.read(0.0, page(generation_tokens_total=5000)))
    assert one.observe_metrics(pages.read(10.0, page(generation_tokens_total=100)))
    worker = one.view(10.0, 30.0)
    assert (worker.resets, worker.tokens_per_s) == (1, 10)


RANKS = "".join(
    page(f'{LABELS},dp_rank="{number}"', num_running_reqs=running, token_usage=use)
    for number, running, use in ((0, 30, 0.3), (1, 2, 0.98), (2, 28, 0.28))
)


def test_ranks_are_added_and_the_worst_stays_visible() -> None:
    one = watch()
    one.observe_metrics(Pages().read(0.0, RANKS))
    worker = one.view(0.0, 30.0)
    assert worker.running == 60
    assert worker.kv_use == pytest.approx(0.52)
    assert (worker.kv_use_worst, worker.kv_worst_rank) == (0.98, "1")
    assert [r.dp_rank for r in worker.ranks] == ["0", "1", "2"]


def test_a_rank_that_never_reported_is_no_zero() -> None:
    one = watch()
    one.observe_loads(loads(0.0, rank("0", 5, 1), LoadRank("1", 0.0, 0.0, 0.0)))
    worker = one.view(0.0, 30.0)
    assert worker.running == 5
    assert worker.backlog.lower_bound
    assert worker.incomplete
    assert (worker.ranks_used, worker.ranks_expected) == (("0",), 2)
    assert worker.ranks[1].running is None


def test_loads_parts_with_what_the_engine_counts_as_waiting() -> None:
    """Real capture: 37 waiting = 34 without room + 3 put back."""
    one = watch()
    one.observe_loads(loads(0.0, rank(running=3, waiting=37, queue=0, prealloc=34, transfer=0, retracted=3)))
    worker = one.view(0.0, 30.0)
    assert worker.backlog.total == 37
    assert dict(worker.backlog.parts) == {"queue": 0, "prealloc": 34, "transfer": 0, "retracted": 3}
    assert worker.retracted == 3


def test_the_queue_alone_can_be_worked_out_from_the_total() -> None:
    one = watch(Role.PREFILL)
    one.observe_loads(loads(0.0, rank(running=0, waiting=9, bootstrap=4)))
    assert dict(one.view(0.0, 30.0).backlog.parts) == {"queue": 5, "bootstrap": 4}


def test_role_as_told_then_by_itself_then_by_its_page() -> None:
    one = watch(Role.UNKNOWN)
    one.observe_metrics(Pages().read(0.0, page('engine_type="decode"', num_running_reqs=1)))
    roles = [one.role]
    one.observe_loads(loads(0.0, rank(), role=Role.PREFILL))
    roles.append(one.role)
    one.observe_info(InfoReading(0.0, State.OK, Role.UNIFIED))
    roles.append(one.role)
    one.about = About("k", "w", Role.DECODE)
    roles.append(one.role)
    assert roles == [Role.DECODE, Role.PREFILL, Role.UNIFIED, Role.DECODE]


def test_a_failed_info_does_not_wipe_out_who_it_is() -> None:
    one = watch()
    one.observe_info(InfoReading(0.0, State.OK, identity=Identity(version="0.5.23", model="m", dp_size=4)))
    one.observe_info(InfoReading(9.0, State.TIMEOUT))
    assert one.view(9.0, 30.0).identity.version == "0.5.23"
    assert one.view(9.0, 30.0).ranks_expected == 4


# Can it take a request now?


def opinion(**said: Health | Breaker | bool) -> RouterOpinion:
    return RouterOpinion("r", **said)  # type: ignore[arg-type]  # a few keywords of a test


WELL = {"health": Health.HEALTHY, "breaker": Breaker.CLOSED}


@pytest.mark.parametrize(
    ("ready", "said", "usable", "because"),
    [
        (None, [], None, ""),
        (True, [], True, ""),
        (False, [], False, "not ready"),
        (None, [WELL], True, ""),
        (True, [WELL], True, ""),
        (False, [WELL], False, "not ready"),
        (True, [{"health": Health.UNHEALTHY}], False, "unhealthy in the router"),
        (True, [{**WELL, "breaker": Breaker.OPEN}], False, "circuit open in the router"),
        (True, [{**WELL, "breaker": Breaker.HALF_OPEN}], False, "circuit half-open in the router"),
        (True, [{"health": Health.DRAINING}], False, "draining"),
        (True, [{"listed": False}], False, "not in the router's list"),
        (True, [{"listed": False}, WELL], True, ""),
        (True, [{**WELL, "breaker": Breaker.OPEN}, WELL], True, ""),
    ],
)
def test_usable(
    ready: bool | None, said: list[Mapping[str, Health]], usable: bool | None, because: str
) -> None:
    one = watch()
    one.observe_metrics(Pages().read(0.0, DECODE))
    if ready is not None:
        one.observe_health(health(0.0, ready))
    worker = one.view(0.0, 30.0, [opinion(**words) for words in said])
    assert (worker.usable, worker.unusable_because) == (usable, because)


def test_a_drain_in_the_config_makes_it_unusable() -> None:
    one = watch(draining=True)
    one.observe_metrics(Pages().read(0.0, DECODE))
    one.observe_health(health(0.0, True))
    assert one.view(0.0, 30.0).usable is False
    assert one.view(0.0, 30.0).draining


def test_a_slow_page_of_a_worker_that_is_ready_does_not_make_it_unusable() -> None:
    one, pages = watch(), Pages()
    one.observe_metrics(pages.fail(0.0, State.TIMEOUT))
    one.observe_health(health(0.0, True))
    assert one.view(0.0, 30.0).usable is True


def test_a_health_route_that_hangs_means_not_usable() -> None:
    one = watch()
    one.observe_metrics(Pages().read(0.0, DECODE))
    one.observe_health(health(0.0, None, State.TIMEOUT, "/health"))
    worker = one.view(0.0, 30.0)
    assert (worker.usable, worker.unusable_because) == (False, "/health does not answer")


def test_an_old_health_answer_says_nothing() -> None:
    one, pages = watch(), Pages()
    one.observe_health(health(0.0, False))
    one.observe_metrics(pages.read(40.0, DECODE))
    assert one.view(40.0, 30.0).usable is None


# Is it alive behind its answers?


def test_a_rank_that_falls_behind_freezes_the_worker() -> None:
    """Real capture of a hung scheduler: 200 on both, the rank's timestamp 8.0 s behind."""
    one = watch()
    one.observe_metrics(Pages().read(0.0, DECODE))
    one.observe_loads(loads(0.0, rank(timestamp=992.0, running=2), clock=1000.0))
    one.observe_health(health(0.0, True))
    worker = one.view(0.5, 30.0)
    assert (worker.state, worker.stale, worker.usable) == (State.FROZEN, True, False)
    assert "8 s behind" in worker.reason
    assert worker.age_s == 8.5


def test_an_idle_rank_reports_about_once_a_second_and_is_not_frozen() -> None:
    one = watch()
    one.observe_metrics(Pages().read(0.0, DECODE))
    one.observe_loads(loads(0.0, rank(timestamp=998.8)))
    assert one.view(0.0, 30.0).state is State.OK


def cpu(at: float, seconds: float, pages: Pages, one: WorkerWatch) -> None:
    one.observe_metrics(pages.read(at, DECODE + page(scheduler_process_cpu_seconds_total=seconds)))


def test_scheduler_cpu_time_that_stands_still_freezes_the_worker() -> None:
    one, pages = watch(), Pages()
    cpu(0.0, 10.0, pages, one)
    cpu(2.0, 10.0, pages, one)
    assert one.view(2.0, 30.0).state is State.OK
    cpu(4.0, 10.0, pages, one)
    worker = one.view(4.0, 30.0)
    assert worker.state is State.FROZEN
    assert worker.age_s == 4.0
    cpu(6.0, 11.0, pages, one)
    assert one.view(6.0, 30.0).state is State.OK


def test_a_rank_that_reports_lives_whatever_the_counter_says() -> None:
    one, pages = watch(), Pages()
    for at in (0.0, 2.0, 4.0):
        cpu(at, 10.0, pages, one)
    one.observe_loads(loads(4.0, rank(timestamp=999.9)))
    assert one.view(4.0, 30.0).state is State.OK


def test_a_dead_worker_is_not_called_frozen() -> None:
    one, pages = watch(), Pages()
    one.observe_loads(loads(0.0, rank(timestamp=900.0)))
    one.observe_metrics(pages.fail(1.0, State.REFUSED))
    assert one.view(1.0, 30.0).state is State.REFUSED


# Trends


def test_trends_have_a_gap_where_nothing_finished_and_where_numbers_are_old() -> None:
    one, pages = watch(), Pages()
    ttft = histogram("time_to_first_token_seconds", (0, 10, 10, 10, 10), 1.5)
    one.observe_metrics(pages.read(0.0, DECODE + histogram("time_to_first_token_seconds", (0,) * 5, 0)))
    one.observe_metrics(pages.read(2.0, DECODE + ttft))
    one.view(2.0, 30.0, tick=True)
    one.observe_metrics(pages.read(4.0, DECODE + ttft))
    one.view(4.0, 1.0, tick=True)
    one.observe_metrics(pages.fail(6.0, State.REFUSED))
    trends = one.view(6.0, 30.0, tick=True).trends
    first, *rest = trends["ttft"]
    assert first == pytest.approx(0.15)
    assert rest == [None, None]
    assert list(trends["running"]) == [7, 7, None]
    assert list(one.history()["running"]) == [7, 7, None]


def test_a_look_between_two_ticks_adds_no_point() -> None:
    one = watch()
    one.observe_metrics(Pages().read(0.0, DECODE))
    one.view(0.0, 30.0)
    assert one.view(0.0, 30.0).trends["running"] == ()


def test_everything_was_asked_once() -> None:
    one = watch()
    one.observe_metrics(Pages().read(0.0, DECODE))
    one.observe_loads(no_loads(0.0))
    one.observe_health(health(0.0, True))
    assert not one.asked
    one.observe_info(info(0.0))
    assert one.asked
