"""Breaker, health and pool: who is usable when."""

from __future__ import annotations

import pytest

from pdtop.gateway.pool import BREAKER_FAILURES, BREAKER_OPEN_S, Backend, Breaker, Pool, Probes, Role


def backend(url: str, role: Role = "decode", weight: float = 1.0, drain: bool = False) -> Backend:
    return Backend(url, role, Probes(3, 2), weight=weight, drain=drain)


def test_failures_in_a_row_open_the_breaker_and_time_half_opens_it() -> None:
    breaker = Breaker()
    for _ in range(BREAKER_FAILURES - 1):
        breaker.record(False, 100.0)
    breaker.record(True, 100.0)
    for _ in range(BREAKER_FAILURES):
        assert breaker.state(100.0) == "closed"
        breaker.record(False, 100.0)
    assert breaker.state(100.0) == "open"
    assert breaker.state(100.0 + BREAKER_OPEN_S) == "half_open"


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [([True, True], "closed"), ([True], "half_open"), ([False], "open"), ([True, False], "open")],
)
def test_what_a_half_open_breaker_learns(outcomes: list[bool], state: str) -> None:
    breaker = Breaker()
    for _ in range(BREAKER_FAILURES):
        breaker.record(False, 0.0)
    for ok in outcomes:
        breaker.record(ok, BREAKER_OPEN_S)
    assert breaker.state(BREAKER_OPEN_S) == state


def test_probes_change_the_state_only_in_a_row() -> None:
    probes = Probes(down_after=3, up_after=2)
    seen = []
    for ok in (False, False, True, False, False, False, True, False, True, True):
        probes.record(ok)
        seen.append(probes.healthy)
    assert seen == [True, True, True, True, True, False, False, False, False, True]


@pytest.mark.parametrize(
    ("weight", "drain", "healthy", "usable"),
    [
        (1.0, False, True, True),
        (0.0, False, True, False),
        (1.0, True, True, False),
        (1.0, False, False, False),
    ],
)
def test_usable(weight: float, drain: bool, healthy: bool, usable: bool) -> None:
    one = backend("x", weight=weight, drain=drain)
    one.probes.healthy = healthy
    assert one.usable(0.0) is usable


def test_a_pool_passes_over_what_is_not_usable_and_what_was_tried() -> None:
    a, b, c = backend("a"), backend("b", drain=True), backend("c")
    pool = Pool("decode", "round_robin", [a, b, c], seed=0)
    assert [pool.pick("", 0.0) for _ in range(3)] == [a, c, a]
    assert pool.pick("", 0.0, without=[c]) is a
    assert pool.pick("", 0.0, without=[a, c]) in (a, c)  # better twice the same than nobody
    a.drain = c.drain = True
    assert pool.pick("", 0.0) is None


def test_a_worker_as_the_list_shows_it() -> None:
    one = Backend("http://h:1", "prefill", Probes(3, 2), bootstrap_port=8998, weight=0.5)
    shown = one.as_json(0.0)
    assert shown["id"] == Backend("http://h:1", "prefill", Probes(3, 2)).worker_id
    assert (shown["status"], shown["breaker"], shown["weight"]) == ("ready", "closed", 0.5)
    assert (shown["worker_type"], shown["bootstrap_port"]) == ("prefill", 8998)
    assert "bootstrap_port" not in backend("x").as_json(0.0)
    assert backend("x", drain=True).as_json(0.0)["status"] == "draining"
