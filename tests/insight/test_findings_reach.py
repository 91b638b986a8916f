"""Findings about reaching workers, and about what the routers make of them."""

from __future__ import annotations

import pytest

from pdtop.cluster.model import Breaker, Health, PageFacts, Role, Severity, State, Worker
from pdtop.insight.reach import counted_as_down
from tests.insight.scenes import kinds, one, opinion, router, scene, worker


def test_a_cluster_that_is_well_has_no_findings() -> None:
    assert kinds(scene(worker("p", Role.PREFILL), worker("d"), routers=[router()])) == []


def test_before_anything_was_asked_there_is_nothing_to_find() -> None:
    assert kinds(scene(Worker("d", "d", Role.DECODE, None))) == []


@pytest.mark.parametrize(
    ("state", "kind", "severity"),
    [
        (State.AUTH, "auth", Severity.WARNING),
        (State.METRICS_DISABLED, "metrics_disabled", Severity.WARNING),
        (State.NOT_METRICS, "no_engine_metrics", Severity.WARNING),
        (State.REDIRECT, "redirect", Severity.WARNING),
        (State.HTTP_ERROR, "http_error", Severity.WARNING),
        (State.PARTIAL, "partial", Severity.INFO),
        (State.FROZEN, "frozen", Severity.CRITICAL),
    ],
)
def test_every_state_has_its_finding_with_reason_and_fix(state: State, kind: str, severity: Severity) -> None:
    found = one(scene(worker(state=state, reason="the reason", fix="the fix")), kind)
    assert (found.severity, found.worker, found.pool) == (severity, "d1", Role.DECODE)
    assert (found.evidence, found.fix) == ("the reason", "the fix")


def test_unreadable_lines_are_a_note_with_their_number() -> None:
    page = PageFacts(100, 2, 1, 5000)
    found = one(scene(worker(state=State.OK_WITH_WARNINGS, page=page)), "bad_lines")
    assert found.severity is Severity.INFO
    assert "2 lines" in found.text
    assert "1 series" in found.text


DEAD = {"usable": False, "unusable_because": "does not answer"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"state": State.REFUSED, "age_s": None, **DEAD}, ["no_usable_worker", "down"]),
        ({"state": State.REFUSED, "age_s": 1.0, **DEAD}, ["no_usable_worker", "down"]),
        ({"state": State.TIMEOUT, "age_s": None, **DEAD}, ["no_usable_worker", "down"]),
        ({"state": State.TIMEOUT, "age_s": 6.0, **DEAD}, ["no_usable_worker", "down"]),
        ({"state": State.TIMEOUT, "age_s": 2.0, **DEAD}, ["no_usable_worker"]),  # one slow answer
        ({"state": State.TIMEOUT, "usable": True}, ["metrics_unreachable"]),
        ({"state": State.TLS, **DEAD}, ["no_usable_worker", "tls"]),
        ({"state": State.REFUSED, "draining": True, **DEAD}, ["no_usable_worker", "down_while_draining"]),
    ],
)
def test_down(more: dict[str, object], expected: list[str]) -> None:
    assert kinds(scene(worker(**more))) == expected


def test_down_says_since_when_it_was_last_heard_of() -> None:
    found = one(scene(worker(state=State.REFUSED, age_s=134.0, reason="connection refused", **DEAD)), "down")
    assert "last good answer 2m14s ago" in found.evidence


def test_workers_that_ask_for_a_key_do_not_count_as_down() -> None:
    assert not counted_as_down(worker(state=State.AUTH, usable=None))
    assert counted_as_down(worker(state=State.REFUSED, usable=False))


# Router and worker disagree


def test_a_dead_worker_that_the_router_still_uses() -> None:
    dead = worker(state=State.REFUSED, opinions=(opinion(),), **DEAD)
    assert one(scene(dead, worker("d2")), "dead_but_routed").severity is Severity.CRITICAL
    noticed = worker(state=State.REFUSED, opinions=(opinion(Health.UNHEALTHY),), **DEAD)
    assert "dead_but_routed" not in kinds(scene(noticed))
    broken = worker(state=State.REFUSED, opinions=(opinion(breaker=Breaker.OPEN),), **DEAD)
    assert "dead_but_routed" not in kinds(scene(broken))


@pytest.mark.parametrize(
    ("said", "kind", "severity", "words"),
    [
        (opinion(Health.UNHEALTHY), "unusable_in_router", Severity.WARNING, "calls it unhealthy"),
        (opinion(breaker=Breaker.OPEN, breaker_since_s=72.0), "breaker_open", Severity.WARNING, "for 1m12s"),
        (opinion(breaker=Breaker.HALF_OPEN, breaker_since_s=9.0), "breaker_half_open", Severity.INFO, "9 s"),
        (
            opinion(breaker=Breaker.HALF_OPEN, breaker_since_s=300.0),
            "breaker_half_open",
            Severity.WARNING,
            "5m00s",
        ),
        (opinion(None, None, listed=False), "not_in_router", Severity.WARNING, "gets no requests"),
    ],
)
def test_a_good_worker_out_of_rotation(said: object, kind: str, severity: Severity, words: str) -> None:
    found = one(scene(worker(opinions=(said,)), worker("d2")), kind)
    assert (found.severity, found.router) == (severity, "r")
    assert words in found.text


def test_which_router_is_named_if_there_are_several() -> None:
    snapshot = scene(worker(opinions=(opinion(Health.UNHEALTHY),)), routers=[router(), router(name="r2")])
    assert "in r " in one(snapshot, "unusable_in_router").text + " "


def test_a_draining_worker_is_meant_to_get_nothing() -> None:
    draining = worker(draining=True, usable=False, opinions=(opinion(None, None, listed=False),))
    assert kinds(scene(draining, worker("d2"))) == []


# Routers and pools


@pytest.mark.parametrize(
    ("more", "kind", "severity"),
    [
        ({"state": State.REFUSED}, "router_down", Severity.CRITICAL),
        ({"state": State.TIMEOUT}, "router_down", Severity.CRITICAL),
        ({"state": State.AUTH}, "router_auth", Severity.WARNING),
        ({"ready": False, "ready_reason": "draining"}, "router_not_ready", Severity.CRITICAL),
        ({"workers": 0}, "no_workers", Severity.CRITICAL),
        ({"loads_unknown": True}, "loads_unknown", Severity.INFO),
        ({"list_stale": True}, "list_stale", Severity.WARNING),
        ({"metrics_state": State.NOT_METRICS}, "no_engine_metrics", Severity.WARNING),
    ],
)
def test_router(more: dict[str, object], kind: str, severity: Severity) -> None:
    found = one(scene(worker(), routers=[router(**more)]), kind)
    assert (found.severity, found.router) == (severity, "r")


def test_a_router_without_a_metrics_page_is_no_finding() -> None:
    assert kinds(scene(worker(), routers=[router(metrics_state=State.METRICS_DISABLED)])) == []


def test_a_pool_without_a_usable_worker_says_why_of_each() -> None:
    workers = [worker(f"d{n}", usable=False, unusable_because=f"reason {n}") for n in range(6)]
    found = one(scene(worker("p", Role.PREFILL), *workers), "no_usable_worker")
    assert (found.severity, found.pool) == (Severity.CRITICAL, Role.DECODE)
    assert "d0: reason 0" in found.evidence
    assert "2 more" in found.evidence


def test_one_usable_or_unknown_worker_is_enough() -> None:
    out = worker("d2", usable=False)
    assert kinds(scene(worker(), out)) == []
    assert kinds(scene(worker(usable=None), out)) == []


def test_a_broken_config_is_said() -> None:
    found = one(scene(worker(), config_error="config.toml line 4: not a number"), "config_broken")
    assert "line 4" in found.evidence
