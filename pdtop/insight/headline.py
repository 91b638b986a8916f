"""Findings about the routers, the pools as a whole and the operator's targets."""

from __future__ import annotations

from collections.abc import Iterator

from pdtop.cluster.model import (
    READABLE,
    Finding,
    Latency,
    Pool,
    Role,
    Router,
    Severity,
    Snapshot,
    State,
    Worker,
)
from pdtop.cluster.words import duration, span
from pdtop.insight.levels import Levels
from pdtop.insight.reach import UNREACHABLE
from pdtop.insight.words import percent, several


def findings(snapshot: Snapshot, levels: Levels) -> Iterator[Finding]:
    """Router by router, then the pools, then the targets, then the configuration."""
    for router in snapshot.routers:
        yield from _router(router, snapshot)
    for pool in (snapshot.prefill, snapshot.decode):
        yield from _pool(pool, snapshot)
    yield from _targets(snapshot, levels)
    if snapshot.config_error:
        yield Finding(
            Severity.WARNING,
            "config_broken",
            "config.toml is broken; the last good one is in force",
            evidence=snapshot.config_error,
            fix="correct the line; it is read again by itself",
        )


def _router(router: Router, snapshot: Snapshot) -> Iterator[Finding]:
    state = router.state
    if state in UNREACHABLE or state is State.HTTP_ERROR:
        last = f"; last good answer {span(router.age_s)} ago" if router.age_s is not None else ""
        yield _finding(
            router,
            Severity.CRITICAL,
            "router_down",
            "the router does not answer"
            if state is not State.TLS
            else "no trusted TLS connection to the router",
            evidence=router.reason + last,
            fix=router.fix or "start it, or correct its address",
        )
        return
    if state not in READABLE and state not in (None, State.METRICS_DISABLED):
        yield _finding(
            router,
            Severity.WARNING,
            f"router_{state}",
            "the router's worker list cannot be read",
            evidence=router.reason,
            fix=router.fix,
        )
    if router.ready is False:
        yield _finding(
            router,
            Severity.CRITICAL,
            "router_not_ready",
            f"the router is not ready: {router.ready_reason or 'no reason given'}",
            evidence=router.ready_reason,
            fix="it needs at least one healthy prefill and one healthy decode worker",
        )
    yield from _router_sees(router, snapshot)


def _router_sees(router: Router, snapshot: Snapshot) -> Iterator[Finding]:
    """What the router itself cannot see, or no longer says."""
    opinions = [
        opinion
        for worker in snapshot.workers
        for opinion in worker.opinions
        if opinion.router == router.name and opinion.listed
    ]
    if router.loads_unknown:
        yield _finding(
            router,
            Severity.INFO,
            "loads_unknown",
            f"the router cannot read the load of {several(len(opinions), 'worker')}: "
            "policies that compare loads are blind",
            evidence="/get_loads gives no number for any worker (-1)",
            fix="this router asks workers for /get_load, which SGLang 0.5.21 and later no longer have",
        )
    if router.workers == 0:
        yield _finding(
            router,
            Severity.CRITICAL,
            "no_workers",
            "the router knows no workers",
            evidence="its worker list is empty",
            fix="add workers to it, or restart it with --prefill and --decode",
        )
    if router.list_stale:
        yield _finding(
            router,
            Severity.WARNING,
            "list_stale",
            "the router's worker list is old",
            evidence=router.reason,
            fix=router.fix,
        )
    if router.metrics_state is State.NOT_METRICS:
        yield _finding(
            router,
            Severity.WARNING,
            "no_engine_metrics",
            "its metrics page answers 200, but holds neither its own nor the engines' series",
            evidence=router.metrics_url or "",
            fix="start the workers with --enable-metrics; see that the address is the right port",
        )


def _pool(pool: Pool, snapshot: Snapshot) -> Iterator[Finding]:
    if pool.total == 0 or pool.usable > 0 or pool.usable_unknown > 0:
        return
    because = [_because(worker) for worker in snapshot.pool_workers(pool.role)]
    yield Finding(
        Severity.CRITICAL,
        "no_usable_worker",
        f"no usable {pool.role} worker: nothing can be served",
        pool=pool.role,
        evidence="; ".join(because[:4]) + (f"; {len(because) - 4} more" if len(because) > 4 else ""),
        fix=f"bring one {pool.role} worker back: see the reasons beside each",
    )


def _because(worker: Worker) -> str:
    return f"{worker.name}: {worker.unusable_because or worker.reason or worker.state or 'not asked'}"


def _targets(snapshot: Snapshot, levels: Levels) -> Iterator[Finding]:
    goodput = snapshot.goodput
    if goodput is None:
        return
    for name, target, share, source in (
        ("TTFT", goodput.ttft_target_s, goodput.ttft_share, snapshot.ttft),
        ("TPOT", goodput.tpot_target_s, goodput.tpot_share, snapshot.tpot),
    ):
        if target is None or share is None or share >= levels.share_within_slo:
            continue
        yield Finding(
            Severity.WARNING,
            f"slo_{name.lower()}",
            f"only {percent(share)} within the {name} target of {duration(target)}",
            pool=Role.DECODE,
            evidence=_p99(name, source),
            fix="see the bottleneck and the slow workers above; the target is in [slo]",
        )


def _p99(name: str, source: Latency | None) -> str:
    quantile = source.distribution.quantile(0.99) if source and source.distribution else None
    if source is None or quantile is None:
        return ""
    at_least = "at least " if quantile.at_least else ""
    return f"{name} p99 {at_least}{duration(quantile.value)} (from {source.source})"


def _finding(
    router: Router, severity: Severity, kind: str, text: str, *, evidence: str = "", fix: str = ""
) -> Finding:
    return Finding(severity, kind, text, router=router.name, evidence=evidence, fix=fix)
