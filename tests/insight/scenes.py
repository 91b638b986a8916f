"""Snapshots made by hand, with only what a rule looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pdtop.cluster import assemble
from pdtop.cluster.model import (
    Backlog,
    Breaker,
    Finding,
    Goodput,
    Health,
    Latency,
    Role,
    Router,
    RouterOpinion,
    Snapshot,
    State,
    Worker,
)
from pdtop.insight.findings import findings
from pdtop.metrics.distribution import Distribution

INF = float("inf")


def worker(key: str = "d1", role: Role = Role.DECODE, /, **more: object) -> Worker:
    """A worker that is well: answers, is usable, has work and no backlog."""
    well = Worker(
        key,
        key,
        role,
        State.OK,
        usable=True,
        age_s=0.5,
        source="/v1/loads",
        running=4.0,
        backlog=Backlog(0.0, parts=dict.fromkeys(_PARTS[role], 0.0)),
        kv_use=0.3,
        kv_use_worst=0.3,
        tokens_per_s=100.0,
    )
    return replace(well, **more)  # type: ignore[arg-type]  # each test names fields of Worker


_PARTS: Mapping[Role, tuple[str, ...]] = {
    Role.PREFILL: ("queue", "bootstrap"),
    Role.DECODE: ("queue", "prealloc", "transfer"),
    Role.UNIFIED: ("queue",),
    Role.UNKNOWN: ("queue",),
}


def waits(**parts: float) -> Backlog:
    return Backlog(sum(parts.values()), parts=dict(parts))


def opinion(
    health: Health | None = Health.HEALTHY, breaker: Breaker | None = Breaker.CLOSED, **more: object
) -> RouterOpinion:
    return replace(RouterOpinion("r", health=health, breaker=breaker), **more)  # type: ignore[arg-type]


def router(**more: object) -> Router:
    well = Router("r", "http://r", "smg", state=State.OK, ready=True, workers=2, metrics_state=State.OK)
    return replace(well, **more)  # type: ignore[arg-type]


def latency(metric: str, middle: float, count: float = 100.0) -> Latency:
    """All observations just around ``middle`` seconds: its p50 is ``middle``."""
    bounds = (middle * 0.99, middle * 1.01, INF)
    return Latency("decode", metric, Distribution(bounds, (0.0, count, count), middle * count))


def scene(*workers: Worker, routers: Iterable[Router] = (), **more: object) -> Snapshot:
    """A snapshot whose pools are those of these workers."""
    made = Snapshot(
        number=1,
        cluster="c",
        at=0.0,
        window_s=10.0,
        interval_s=2.0,
        tick_s=1.0,
        routers=tuple(routers),
        prefill=assemble.pool(Role.PREFILL, workers, {}),
        decode=assemble.pool(Role.DECODE, workers, {}),
        workers=workers,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def kinds(snapshot: Snapshot) -> list[str]:
    return [finding.kind for finding in findings(snapshot)]


def one(snapshot: Snapshot, kind: str) -> Finding:
    """The only finding of this kind."""
    found = [finding for finding in findings(snapshot) if finding.kind == kind]
    assert len(found) == 1, findings(snapshot)
    return found[0]


def goodput(ttft_share: float | None = None, tpot_share: float | None = None) -> Goodput:
    return Goodput(0.8, 0.045, ttft_share, tpot_share)
