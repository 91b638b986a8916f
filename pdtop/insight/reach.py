"""Findings about being there at all: what a worker answers, and what the routers make of it."""

from __future__ import annotations

from collections.abc import Iterator

from pdtop.cluster.model import (
    READABLE,
    Breaker,
    Finding,
    Health,
    RouterOpinion,
    Severity,
    Snapshot,
    State,
    Worker,
)
from pdtop.cluster.words import span
from pdtop.insight.levels import Levels
from pdtop.insight.words import several

#: States that say the process cannot be reached, as opposed to "reached, but the page is of no use".
UNREACHABLE = frozenset({State.REFUSED, State.TIMEOUT, State.TLS})

_ANSWERS_BUT = {
    State.AUTH: "asks for a key on /metrics",
    State.METRICS_DISABLED: "has its metrics switched off",
    State.NOT_METRICS: "answers 200, but not with metrics",
    State.REDIRECT: "sends /metrics elsewhere",
    State.HTTP_ERROR: "answers /metrics with an error",
    State.PARTIAL: "ends its metrics page early",
}


def counted_as_down(worker: Worker) -> bool:
    """Whether the worker counts as down: unreachable by every route that was tried, and for long enough."""
    return worker.state in UNREACHABLE and worker.usable is not True and worker.reachable is not True


def worker_findings(worker: Worker, snapshot: Snapshot, levels: Levels) -> Iterator[Finding]:
    """What is wrong with reaching this worker, and where a router sees it differently."""
    yield from _state(worker, levels)
    yield from _flaky(worker)
    for opinion in worker.opinions:
        yield from _opinion(worker, opinion, several_routers=len(snapshot.routers) > 1, levels=levels)


def _state(worker: Worker, levels: Levels) -> Iterator[Finding]:
    state = worker.state
    if state is None or state is State.OK:
        return
    last_good = f"last good answer {span(worker.age_s)} ago" if worker.age_s is not None else "never answered"
    if state is State.OK_WITH_WARNINGS:
        if worker.page is not None:
            yield _finding(
                worker,
                Severity.INFO,
                "bad_lines",
                f"{several(worker.page.bad_lines, 'line')} of its page unreadable, "
                f"{several(worker.page.duplicates, 'series', 'series')} repeated",
                evidence=worker.reason,
            )
    elif state is State.FROZEN:
        yield _finding(
            worker,
            Severity.CRITICAL,
            "frozen",
            "frozen: it answers, but its numbers stand still",
            evidence=worker.reason or last_good,
            fix=worker.fix or "its scheduler hangs; take it out of rotation and restart it",
        )
    elif state not in UNREACHABLE:
        yield _finding(
            worker,
            Severity.INFO if state is State.PARTIAL else Severity.WARNING,
            "no_engine_metrics" if state is State.NOT_METRICS else str(state),
            _ANSWERS_BUT[state],
            evidence=worker.reason,
            fix=worker.fix,
        )
    elif worker.draining:
        yield _finding(
            worker,
            Severity.INFO,
            "down_while_draining",
            "no longer answers; it was draining",
            evidence=f"{worker.reason}; {last_good}",
        )
    elif worker.usable is True:
        yield _finding(
            worker,
            Severity.WARNING,
            "metrics_unreachable",
            "is alive, but /metrics does not answer",
            evidence=f"{worker.reason}; {last_good}",
            fix=worker.fix,
        )
    elif worker.reachable is True:
        return  # too few failures in a row to say anything
    elif state is State.TLS:
        yield _finding(
            worker,
            Severity.CRITICAL,
            "tls",
            "no trusted TLS connection",
            evidence=worker.reason,
            fix=worker.fix or "give the CA with [server] ca_file",
        )
    elif (
        state is State.REFUSED
        or worker.reachable is False
        or worker.age_s is None
        or worker.age_s >= levels.slow_answer_s
    ):
        yield _finding(
            worker,
            Severity.CRITICAL,
            "down",
            "down: connection refused" if state is State.REFUSED else "down: does not answer",
            evidence="; ".join(part for part in (worker.reason, last_good) if part),
            fix=worker.fix
            or "look at the process and its host; the router should have stopped sending to it",
        )


def _flaky(worker: Worker) -> Iterator[Finding]:
    if not worker.flaky or worker.draining or counted_as_down(worker):
        return
    yield _finding(
        worker,
        Severity.WARNING,
        "flaky",
        f"flaky: {worker.recent_failures} of its last {several(worker.recent_reads, 'read')} failed",
        evidence=worker.reason or "the newest read was good",
        fix="it is slow, or its network loses packets: see its host; the router's probes see the same",
    )


def _opinion(
    worker: Worker, opinion: RouterOpinion, *, several_routers: bool, levels: Levels
) -> Iterator[Finding]:
    where = f" in {opinion.router}" if several_routers else ""
    if counted_as_down(worker) or worker.state is State.FROZEN:
        routed = opinion.listed and opinion.health is Health.HEALTHY
        if routed and opinion.breaker in (None, Breaker.CLOSED) and not worker.draining:
            yield _finding(
                worker,
                Severity.CRITICAL,
                "dead_but_routed",
                f"the router{where} still calls it healthy and sends to it",
                router=opinion.router,
                evidence=f"router: healthy, circuit closed; worker: {worker.state}",
                fix="remove it from the router until it is back",
            )
        return
    if worker.state is None or worker.draining:
        return
    if not opinion.listed:
        yield _finding(
            worker,
            Severity.WARNING,
            "not_in_router",
            f"is not in the router's list{where}: it gets no requests",
            router=opinion.router,
            fix="add it to the router, or take it out of config.toml",
        )
        return
    if opinion.health is Health.UNHEALTHY and worker.state in READABLE:
        yield _finding(
            worker,
            Severity.WARNING,
            "unusable_in_router",
            f"answers, but the router{where} calls it unhealthy: it gets no requests",
            router=opinion.router,
            evidence=worker.unusable_because or f"worker: {worker.state}",
            fix="see what its health route answers to the router; it returns after some good probes",
        )
    yield from _breaker(worker, opinion, where, levels)


def _breaker(worker: Worker, opinion: RouterOpinion, where: str, levels: Levels) -> Iterator[Finding]:
    since = opinion.breaker_since_s
    lasting = f" for {span(since)}" if since is not None and since >= 1 else ""
    if opinion.breaker is Breaker.OPEN:
        yield _finding(
            worker,
            Severity.WARNING,
            "breaker_open",
            f"circuit open{where}{lasting}: out of rotation",
            router=opinion.router,
            evidence=f"router health: {opinion.health or 'not known'}; worker: {worker.state}",
            fix="its requests failed; read its log. The router tries again by itself after its time-out",
        )
    elif opinion.breaker is Breaker.HALF_OPEN:
        limit = levels.half_open_timeouts * levels.breaker_timeout_s
        long = (
            since is not None
            and since >= limit
            and worker.state in READABLE
            and opinion.health in (Health.HEALTHY, None)
        )
        yield _finding(
            worker,
            Severity.WARNING if long else Severity.INFO,
            "breaker_half_open",
            f"circuit half-open without recovery{where}{lasting}: gets no requests although it is well"
            if long
            else f"circuit half-open{where}{lasting}",
            router=opinion.router,
            evidence=f"router health: {opinion.health or 'not known'}; worker: {worker.state}",
            fix="if it does not close, remove it from the router and add it again" if long else "",
        )


def _finding(
    worker: Worker,
    severity: Severity,
    kind: str,
    text: str,
    *,
    router: str | None = None,
    evidence: str = "",
    fix: str = "",
) -> Finding:
    return Finding(
        severity=severity,
        kind=kind,
        text=text,
        worker=worker.key,
        pool=worker.role,
        router=router,
        evidence=evidence,
        fix=fix,
    )
