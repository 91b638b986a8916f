"""The router watch: opinions, shares, breakers over time, removed workers, counts and latencies."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pdtop.cluster.address import Address
from pdtop.cluster.model import Breaker, Health, Role, State
from pdtop.cluster.readings import ListedWorker, RouterReading
from pdtop.cluster.router_watch import RouterWatch
from tests.cluster.story import Pages

P1, D1, D2 = "10.0.1.1:30001", "10.0.2.1:30001", "10.0.2.2:30001"
ROLES = {P1: Role.PREFILL, D1: Role.DECODE, D2: Role.DECODE}


def url(key: str) -> str:
    return f"http://{key}"


def listed(*entries: ListedWorker, at: float = 0.0, **more: Mapping[str, float | None]) -> RouterReading:
    return RouterReading(at, State.OK, 200, engine="sglang-router", workers=entries, ready=True, **more)  # type: ignore[arg-type]


def entry(key: str, health: Health = Health.HEALTHY, **more: str | float) -> ListedWorker:
    return ListedWorker(f"id-{key}", url(key), ROLES.get(key, Role.UNKNOWN), health, **more)  # type: ignore[arg-type]


def outcomes(**counts: tuple[float, float]) -> str:
    """A page of sglang-router 0.3.2: successes and failures by worker, named p1, d1, d2."""
    keys = {"p1": P1, "d1": D1, "d2": D2, "gone": "10.0.9.9:30001"}
    lines = ["# TYPE smg_worker_cb_outcomes_total counter"]
    for name, (good, bad) in counts.items():
        worker = url(keys[name])
        lines += [
            f'smg_worker_cb_outcomes_total{{worker="{worker}",outcome="success"}} {good}',
            f'smg_worker_cb_outcomes_total{{worker="{worker}",outcome="failure"}} {bad}',
        ]
    return "\n".join(lines) + "\n"


def breaker_page(state: int) -> str:
    return f'# TYPE smg_worker_cb_state gauge\nsmg_worker_cb_state{{worker="{url(D1)}"}} {state}\n'


def test_shares_are_within_the_pool_and_failures_of_known_ends() -> None:
    one, pages = RouterWatch("r"), Pages()
    one.observe_router(listed(entry(P1), entry(D1), entry(D2)))
    one.observe_metrics(pages.router(0.0, outcomes(p1=(10, 0), d1=(5, 0), d2=(5, 0))))
    one.observe_metrics(pages.router(10.0, outcomes(p1=(110, 0), d1=(75, 5), d2=(30, 0))))
    one.observe_router(listed(entry(P1), entry(D1), entry(D2), at=10.0))
    view = one.view(10.0, 30.0, ROLES)
    d1 = view.opinions[D1]
    assert view.opinions[P1].share == 1.0
    assert d1.share == 0.75
    assert d1.requests == 75
    assert d1.requests_per_s == 7.5
    assert d1.failure_rate == pytest.approx(5 / 75)
    assert view.router.max_over_mean == 1.5
    assert view.router.requests == 200


def test_a_worker_that_the_router_let_go_is_ignored_though_its_series_stay() -> None:
    """sglang-router 0.3.2 keeps six series of every removed worker for ever."""
    one, pages = RouterWatch("r"), Pages()
    one.observe_router(listed(entry(D1)))
    one.observe_metrics(pages.router(0.0, outcomes(d1=(1, 0), gone=(900, 0))))
    view = one.view(0.0, None, {D1: Role.DECODE})
    assert set(view.opinions) == {D1}
    assert view.router.requests == 1


def test_a_watched_worker_that_is_not_on_the_list() -> None:
    one = RouterWatch("r")
    one.observe_router(listed(entry(D1)))
    assert one.view(0.0, 30.0, ROLES).opinions[D2].listed is False


def test_without_a_list_the_page_says_who_is_there() -> None:
    one, pages = RouterWatch("r"), Pages()
    one.observe_metrics(pages.router(0.0, outcomes(d1=(1, 0), d2=(3, 0))))
    view = one.view(0.0, None)
    assert view.listed is None
    assert set(view.opinions) == {D1, D2}
    assert view.opinions[D2].share == 0.75


def test_time_in_a_breaker_state_is_counted_from_when_it_was_first_seen() -> None:
    one, pages = RouterWatch("r"), Pages()
    one.observe_router(listed(entry(D1)))
    for at, state in ((0.0, 0), (2.0, 1), (4.0, 1)):
        one.observe_metrics(pages.router(at, breaker_page(state)))
    opinion = one.view(6.0, 30.0, {D1: Role.DECODE}).opinions[D1]
    assert (opinion.breaker, opinion.breaker_since_s) == (Breaker.OPEN, 4.0)
    one.observe_metrics(pages.router(8.0, breaker_page(2)))
    opinion = one.view(9.0, 30.0, {D1: Role.DECODE}).opinions[D1]
    assert (opinion.breaker, opinion.breaker_since_s) == (Breaker.HALF_OPEN, 1.0)


def test_ranks_of_one_worker_are_one_opinion_and_the_worst_counts() -> None:
    one = RouterWatch("r")
    ranks = (
        ListedWorker("a", url(D1) + "@0", Role.DECODE, Health.HEALTHY, load=3.0),
        ListedWorker("b", url(D1) + "@1", Role.DECODE, Health.UNHEALTHY, load=4.0),
    )
    one.observe_router(RouterReading(0.0, State.OK, 200, workers=ranks))
    opinion = one.view(0.0, 30.0, {D1: Role.DECODE}).opinions[D1]
    assert opinion.worker_ids == ("a", "b")
    assert (opinion.health, opinion.load) == (Health.UNHEALTHY, 7.0)


def test_loads_that_the_router_cannot_read_are_unknown_not_minus_one() -> None:
    one = RouterWatch("r")
    one.observe_router(listed(entry(D1, load=5.0), entry(D2), loads={url(D1): None, url(D2): None}))
    view = one.view(0.0, 30.0, ROLES)
    assert view.opinions[D1].load is None
    assert view.router.load_sum is None
    assert view.router.loads_unknown


def test_what_a_silent_router_said_is_not_believed_for_ever() -> None:
    one = RouterWatch("r")
    one.observe_router(listed(entry(D1)))
    one.observe_router(RouterReading(9.0, State.REFUSED, reason="refused"))
    still = one.view(9.0, 30.0, {D1: Role.DECODE})
    assert still.opinions[D1].health is Health.HEALTHY
    assert still.router.list_stale
    later = one.view(11.0, 30.0, {D1: Role.DECODE})
    assert later.opinions == {}
    assert later.router.state is State.REFUSED
    assert later.router.age_s == 11.0


def test_a_summary_gives_the_routers_own_quantiles_marked_as_approximate() -> None:
    page = """# TYPE sgl_router_request_duration_seconds summary
sgl_router_request_duration_seconds{{route="/generate",quantile="0.5"}} 0.2
sgl_router_request_duration_seconds_sum{{route="/generate"}} {0}
sgl_router_request_duration_seconds_count{{route="/generate"}} {1}
"""
    one, pages = RouterWatch("r"), Pages()
    one.observe_metrics(pages.router(0.0, page.format(10, 50)))
    one.observe_metrics(pages.router(10.0, page.format(40, 150)))
    duration = one.view(10.0, 30.0).router.duration
    assert duration is not None
    assert duration.approximate
    assert duration.count == 100
    assert duration.mean == pytest.approx(0.3)
    middle = duration.quantile(0.5)
    assert middle is not None
    assert middle.value == 0.2


def test_policies_as_the_page_counts_selections() -> None:
    page = """# TYPE smg_worker_selection_total counter
smg_worker_selection_total{worker_type="prefill",policy="cache_aware"} 9
smg_worker_selection_total{worker_type="decode",policy="power_of_two"} 9
smg_worker_selection_total{worker_type="decode",policy="random"} 1
"""
    one = RouterWatch("r")
    one.observe_metrics(Pages().router(0.0, page))
    assert one.view(0.0, 30.0).policies == {Role.PREFILL: "cache_aware", Role.DECODE: "power_of_two"}


def test_a_loopback_name_in_the_list_is_the_routers_machine() -> None:
    one = RouterWatch("r", address=Address.parse("http://10.9.9.9:30000"))
    one.observe_router(
        RouterReading(0.0, State.OK, 200, workers=(ListedWorker("", "http://127.0.0.1:1", Role.DECODE),))
    )
    assert one.view(0.0, 30.0).listed == frozenset({"10.9.9.9:1"})
