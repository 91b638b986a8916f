"""Breaker, health and pool: who is usable when, and what stays when the configuration changes."""

from __future__ import annotations

from typing import Any

import pytest

from pdtop.config.schema import Config
from pdtop.gateway.fleet import CannotServe, Fleet, NoWorker, Wanted
from pdtop.gateway.health import BREAKER_FAILURES, BREAKER_OPEN_S, Breaker, Probes
from pdtop.gateway.policies import NAMES
from pdtop.gateway.pool import Backend, Role, url_of


def backend(url: str, role: Role = "decode", weight: float = 1.0, drain: bool = False) -> Backend:
    return Backend(url, role, Probes(3, 2), weight=weight, drain=drain)


def settings(
    prefill: list[str],
    decode: list[str],
    policy: str = "round_robin",
    *,
    tables: dict[str, dict[str, Any]] | None = None,
    **more: dict[str, Any],
) -> Config:
    """``tables``: what is special about decode workers; ``more``: further tables of the file."""
    return Config.model_validate(
        {
            "prefill": {"workers": prefill, "policy": policy},
            "decode": {"workers": decode, "policy": policy, "worker": tables or {}},
            **more,
        }
    )


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


def test_a_half_open_breaker_lets_one_request_through_at_a_time() -> None:
    one = backend("x")
    for _ in range(BREAKER_FAILURES):
        one.end(one.begin(0, 0.0), False, 0.0)
    assert not one.usable(0.0)
    assert one.usable(BREAKER_OPEN_S)
    trial = one.begin(0, BREAKER_OPEN_S)
    assert not one.usable(BREAKER_OPEN_S)
    one.end(trial, None, BREAKER_OPEN_S)  # its client left: nothing learned
    assert one.usable(BREAKER_OPEN_S)


def test_probes_change_the_state_only_in_a_row() -> None:
    probes = Probes(down_after=3, up_after=2)
    seen = []
    for ok in (True, False, False, True, False, False, False, True, False, True, True):
        probes.record(ok)
        seen.append(probes.healthy)
    assert seen == [True, True, True, True, True, True, False, False, False, False, True]


def test_the_first_probe_decides_alone() -> None:
    probes = Probes(down_after=3, up_after=2)
    probes.record(False)
    assert not probes.healthy


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


def test_ending_twice_counts_once() -> None:
    one = backend("x")
    leg = one.begin(300.0, 0.0)
    leg.progress(100.0)
    assert (one.inflight, one.tokens) == (1, 200.0)
    one.end(leg, True, 1.0)
    one.end(leg, None, 1.0)
    assert (one.inflight, one.tokens, one.succeeded, one.failed) == (0, 0.0, 1, 0)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("10.0.1.11:30001", "http://10.0.1.11:30001"),
        ("https://Node-7:443/", "https://node-7:443"),
        ("http://user:word@h:1", "http://h:1"),
        ("h:1@0", "http://h:1"),
        ("[fd00::1]:30000", "http://[fd00::1]:30000"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    assert url_of(text) == url


def test_the_host_that_decode_is_told() -> None:
    assert backend("http://[fd00::1]:30000").host == "fd00::1"
    assert backend("http://node-7:1").host == "node-7"


def chosen(fleet: Fleet, tried: set[Backend] | None = None) -> str:
    """One request that ends at once: the decode worker that it went to."""
    dispatch = fleet.dispatch(Wanted(), 0.0, tried or set())
    fleet.close(dispatch, 0.0)
    return dispatch.decode.backend.url


def test_a_pool_passes_over_what_is_not_usable_and_what_was_tried() -> None:
    fleet = Fleet(settings(["p:1"], ["a:1", "b:1", "c:1"], tables={"b:1": {"drain": True}}))
    a, _, c = fleet.decode.backends
    assert [chosen(fleet) for _ in range(3)] == ["http://a:1", "http://c:1", "http://a:1"]
    assert chosen(fleet, {c}) == "http://a:1"
    assert chosen(fleet, {a, c}) in ("http://a:1", "http://c:1")  # better twice the same than nobody
    a.drain = c.drain = True
    with pytest.raises(NoWorker, match="no decode worker"):
        chosen(fleet)


def test_nothing_is_owed_for_the_time_away() -> None:
    fleet = Fleet(settings(["p:1"], ["a:1", "b:1"]))
    a, b = fleet.decode.backends
    b.drain = True
    assert {chosen(fleet) for _ in range(50)} == {a.url}
    b.drain = False
    assert [chosen(fleet) for _ in range(4)] == [a.url, b.url, a.url, b.url]


def test_a_new_weight_owes_nothing_either() -> None:
    fleet = Fleet(settings(["p:1"], ["a:1", "b:1"], tables={"b:1": {"weight": 0.01}}))
    assert [chosen(fleet) for _ in range(50)].count("http://b:1") == 0
    fleet.apply(settings(["p:1"], ["a:1", "b:1"]))
    assert [chosen(fleet) for _ in range(10)].count("http://b:1") == 5


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("odd", [5e-324, 1e308])
def test_weights_at_the_ends_of_numbers_harm_no_choice(policy: str, odd: float) -> None:
    names = ["d0:1", "d1:1", "d2:1"]
    tables = {"d0:1": {"weight": odd}, "d1:1": {"weight": odd}}
    fleet = Fleet(settings(["p:1"], names, policy, tables=tables), seed=1)

    def served(first: int) -> set[str]:
        found = set()
        for number in range(first, first + 60):
            dispatch = fleet.dispatch(Wanted(f"prompt {number}"), 0.0, set())
            fleet.close(dispatch, 0.0)
            found.add(dispatch.decode.backend.url)
        return found

    assert served(0) == ({"http://d2:1"} if odd < 1 else {"http://d0:1", "http://d1:1"})
    fleet.apply(settings(["p:1"], names, policy))
    assert served(60) == {f"http://{name}" for name in names}


@pytest.mark.parametrize("policy", NAMES)
def test_loads_beyond_numbers_harm_no_choice(policy: str) -> None:
    load = {"measure": "tokens", "per_1000_tokens": 1e308, "cache_benefit": 1e308}
    fleet = Fleet(settings(["p:1", "q:1"], ["d0:1", "d1:1"], policy, load=load), seed=1)
    for _ in range(20):  # all stay open
        fleet.dispatch(Wanted("prompt", 1e9, 1e9), 0.0, set())
    assert sum(b.inflight for b in fleet) == 40


def test_a_reload_keeps_what_stays_and_lets_what_goes_finish() -> None:
    fleet = Fleet(settings(["p:1"], ["a:1", "b:1"]))
    a, b = fleet.decode.backends
    on_a, on_b = (fleet.dispatch(Wanted(), 0.0, set()) for _ in range(2))
    fleet.end(on_a.decode, False, 0.0)
    fleet.apply(settings(["p:1"], ["http://B:1", "c:1"], health={"unhealthy_threshold": 7}))
    assert [w.url for w in fleet.decode] == ["http://b:1", "http://c:1"]  # a had nothing left
    assert a.gone
    assert fleet.decode.backends[0] is b
    assert (b.inflight, b.dispatched, b.probes.down_after) == (1, 1, 7)
    fleet.apply(settings(["p:1"], ["c:1"]))
    assert (b.status, b.gone, b.usable(0.0)) == ("draining", False, False)
    assert b in fleet.decode.backends
    fleet.apply(settings(["p:1"], ["b:1", "c:1"]))  # back before its last request has ended
    assert (fleet.decode.backends[0], b.status) == (b, "ready")
    fleet.apply(settings(["p:1"], ["c:1"]))
    fleet.close(on_b, 1.0)
    assert b.gone
    assert [w.url for w in fleet.decode] == ["http://c:1"]


def test_a_worker_that_changes_sides_is_two() -> None:
    fleet = Fleet(settings(["p:1", "x:1"], ["d:1"]))
    held = [fleet.dispatch(Wanted(), 0.0, set()) for _ in range(2)]
    fleet.apply(settings(["p:1"], ["d:1", "x:1"]))
    assert [(w.url, w.role, w.status) for w in fleet if w.url == "http://x:1"] == [
        ("http://x:1", "prefill", "draining"),
        ("http://x:1", "decode", "ready"),
    ]
    assert len({w.worker_id for w in fleet}) == 4
    for dispatch in held:
        fleet.close(dispatch, 1.0)
    assert [w.role for w in fleet if w.url == "http://x:1"] == ["decode"]


def test_a_policy_that_is_not_here_changes_nothing() -> None:
    fleet = Fleet(settings(["p:1"], ["d:1"]))
    with pytest.raises(CannotServe, match="'bucket'"):
        fleet.apply(settings(["p:2"], ["d:2"], policy="bucket"))
    assert [w.url for w in fleet] == ["http://p:1", "http://d:1"]


def test_the_file_wins_over_the_api() -> None:
    config = settings(["p:1"], ["a:1", "b:1"])
    fleet = Fleet(config)
    a, b = fleet.decode.backends
    fleet.add("decode", "http://c:1")
    fleet.weigh(b, 0.5)
    a.drain = True
    assert fleet.transient == (
        "http://a:1 drains because of the API",
        "http://b:1 has weight 0.5 because of the API",
        "http://c:1 was added through the API",
    )
    fleet.remove(b)
    assert "http://b:1 was removed through the API" in fleet.transient
    fleet.apply(config)
    assert [(w.url, w.weight, w.status) for w in fleet.decode] == [
        ("http://a:1", 1.0, "ready"),
        ("http://b:1", 1.0, "ready"),
    ]
    assert not fleet.transient


def test_affinity_goes_by_what_was_sent_where() -> None:
    fleet = Fleet(settings(["p:1", "q:1"], ["d:1"], policy="cache_aware"), seed=3)
    one, two = Wanted("one " * 200), Wanted("two " * 200)
    first = fleet.dispatch(one, 0.0, set())
    fleet.close(first, 0.0)
    home = first.prefill.backend
    for _ in range(5):
        again = fleet.dispatch(one, 0.0, set())
        assert (again.prefill.backend, again.pair.prefill.reason) == (home, "affinity")
        assert again.pair.prefill.chosen.matched == 1.0
        fleet.close(again, 0.0)
    assert fleet.dispatch(two, 0.0, set()).pair.prefill.reason == "load"


def test_a_worker_as_the_list_shows_it() -> None:
    one = Backend("http://h:1", "prefill", Probes(3, 2), bootstrap_port=8998, weight=0.5)
    shown = one.as_json(0.0)
    assert shown["id"] == Backend("http://h:1", "prefill", Probes(3, 2)).worker_id
    assert (shown["status"], shown["breaker"], shown["weight"]) == ("ready", "closed", 0.5)
    assert (shown["worker_type"], shown["bootstrap_port"]) == ("prefill", 8998)
    assert "bootstrap_port" not in backend("x").as_json(0.0)
    drained = backend("x", drain=True).as_json(0.0)
    assert (drained["status"], drained["draining"], drained["is_healthy"]) == ("draining", True, False)
