"""Findings about one worker against its pool: share, failures, speed, version."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from statistics import fmean

from pdtop.cluster.model import (
    READABLE,
    Finding,
    Identity,
    Latency,
    Role,
    RouterOpinion,
    Severity,
    Snapshot,
    Worker,
)
from pdtop.cluster.words import duration
from pdtop.insight.levels import Levels
from pdtop.insight.load import Work, count_load
from pdtop.insight.words import count, percent, several

_POOL_NAME = {
    Role.PREFILL: "prefill",
    Role.DECODE: "decode",
    Role.UNIFIED: "unified",
    Role.UNKNOWN: "the cluster",
}


def findings(snapshot: Snapshot, levels: Levels) -> Iterator[Finding]:
    """Every worker compared with the others of its role."""
    for role in Role:
        workers = snapshot.pool_workers(role)
        if not workers:
            continue
        yield from _restarts(workers)
        if len(workers) < 2:
            continue
        yield from _hot(workers, snapshot, levels)
        yield from _failing(workers, levels)
        yield from _slow(workers, levels)
        yield from _mismatch(workers, "version", lambda identity: identity.version)
        yield from _mismatch(workers, "model", lambda identity: identity.model)


def _restarts(workers: Sequence[Worker]) -> Iterator[Finding]:
    for worker in workers:
        if worker.resets > 0:
            yield _finding(
                worker,
                Severity.WARNING,
                "restart",
                "restarted: its counters began again",
                evidence=several(worker.resets, "restart") + " seen in the window",
                fix="read its log; its partners may still fail requests that were bound to it",
            )


def _dispatches(worker: Worker) -> float | None:
    """Requests that were sent to it in the window, by all routers; None if no router counts them."""
    counts = [opinion.requests for opinion in worker.opinions if opinion.requests is not None]
    return sum(counts) if counts else None


def _hot(workers: Sequence[Worker], snapshot: Snapshot, levels: Levels) -> Iterator[Finding]:
    # Who cannot take requests leaves his share to the others: that is no imbalance.
    in_rotation = [
        w
        for w in workers
        if w.share is not None and w.usable is not False and not w.draining and w.weight > 0
    ]
    if len(in_rotation) < 2:
        return
    weights = sum(w.weight for w in in_rotation)
    known = [d for d in map(_dispatches, in_rotation) if d is not None]
    total = sum(known) if known else None
    for worker in in_rotation:
        share, even = worker.share, worker.weight / weights
        if share is None or share < levels.hot_ratio * even:
            continue
        if total is not None:
            beyond = (share - even) / sqrt(even * (1 - even) / total) if total else 0.0
            if total < levels.hot_requests or beyond < levels.hot_sigmas:
                continue
        others = [w for w in in_rotation if w is not worker]
        if not any(_has_room(other, worker, levels) for other in others):
            continue  # all are busy: what is lacking is capacity
        idle = sum(1 for w in others if not w.backlog.total)
        room = f"; {several(idle, 'other')} without backlog" if worker.backlog.total and idle else ""
        hits = f", hit rate {percent(worker.hit_rate)}" if worker.hit_rate is not None else ""
        pool = _POOL_NAME[worker.role]
        affinity = worker.role is Role.PREFILL and (worker.hit_rate or 0.0) >= levels.affinity_hits
        yield _finding(
            worker,
            Severity.WARNING,
            "hot_worker",
            f"takes {percent(share)} of {pool}" + (": prefix affinity" if affinity else "") + room,
            evidence=f"even share {percent(even)}"
            + (f", {count(total)} dispatches in the window" if total is not None else "")
            + hits
            + _loads(worker, others),
            fix=affinity_fix(snapshot.prefill.policy)
            if affinity
            else "look at the policy and at the loads that the router sees",
        )


def affinity_fix(policy: str) -> str:
    """Which knob sends less to the worker that holds a prefix, and in which direction."""
    if policy and not policy.startswith("cache_aware"):
        return f"the policy {policy} binds requests to it: take one that looks at load"
    return "lower cache_aware_threshold (leave affinity earlier)"


def _load(worker: Worker) -> float | None:
    return count_load(Work(worker.running, worker.backlog.total))


def _has_room(other: Worker, hot: Worker, levels: Levels) -> bool:
    """Whether it could take some of the hot one's work; what is not known speaks for it."""
    if (other.kv_use_worst or 0.0) >= levels.kv_warn:
        return False
    load, most = _load(other), _load(hot)
    return not other.backlog.total or load is None or most is None or load < most


def _loads(worker: Worker, others: Sequence[Worker]) -> str:
    own = _load(worker)
    rest = [load for load in map(_load, others) if load is not None]
    return f", load {count(own)}, the others {count(fmean(rest))}" if own is not None and rest else ""


def _own(opinions: Sequence[RouterOpinion]) -> tuple[float, float] | None:
    """(dispatches, failures) in the window over all routers."""
    known = [(o.requests, o.failure_rate) for o in opinions if o.requests and o.failure_rate is not None]
    if not known:
        return None
    return sum(r for r, _ in known), sum(r * rate for r, rate in known)


def _failing(workers: Sequence[Worker], levels: Levels) -> Iterator[Finding]:
    counts = {w.key: own for w in workers if (own := _own(w.opinions)) is not None}
    for worker in workers:
        if worker.key not in counts:
            continue
        requests, failures = counts[worker.key]
        rate = failures / requests
        if failures < levels.failing_requests or rate < levels.failing_rate:
            continue
        rest = [own for key, own in counts.items() if key != worker.key]
        rest_requests = sum(own[0] for own in rest)
        rest_rate = sum(own[1] for own in rest) / rest_requests if rest_requests else 0.0
        if rate < levels.failing_ratio * rest_rate:
            continue
        yield _finding(
            worker,
            Severity.CRITICAL if rate >= 0.5 else Severity.WARNING,
            "failing_requests",
            f"fails {percent(rate)} of its requests; the others fail {percent(rest_rate)}",
            evidence=f"{count(failures)} of {count(requests)} dispatches in the window",
            fix="read its log; take it out of rotation if it goes on",
        )


def _slow(workers: Sequence[Worker], levels: Levels) -> Iterator[Finding]:
    """The worker that moved: its middle latency against the middle of the others'."""
    found: set[str] = set()
    checks: tuple[tuple[str, float, Callable[[Worker], Latency | None]], ...] = (
        ("TPOT", levels.slow_ratio, lambda w: w.tpot),
        ("TTFT", levels.slow_first_ratio, lambda w: w.ttft if w.role is not Role.PREFILL else None),
        ("queue time", levels.slow_first_ratio, lambda w: w.queue_time if w.role is Role.PREFILL else None),
    )
    for name, ratio, get in checks:
        middles = {w.key: middle for w in workers if (middle := _middle(get(w), levels)) is not None}
        ordered = sorted(middles.values())
        for worker in workers if len(ordered) > 2 else ():
            own = middles.get(worker.key)
            if own is None or worker.key in found:
                continue
            usual = _median_without(ordered, own)
            floor = 0.005 if name == "TPOT" else 0.2  # smaller differences hurt nobody
            if own < ratio * usual or own - usual < floor:
                continue
            found.add(worker.key)
            times = f"{own / max(usual, 1e-9):.1f} times the others ({duration(usual)})"
            yield _finding(
                worker,
                Severity.WARNING,
                "slow_worker",
                f"slow: {name} p50 {duration(own)}, "
                + (times if own < 100 * usual else f"the others {duration(usual)}"),
                evidence=f"{name} p50 {duration(own)}, median of the others {duration(usual)}; "
                f"running {'?' if worker.running is None else count(worker.running)}",
                fix="compare clocks, temperature and neighbours on its host; lower its share meanwhile",
            )


def _median_without(ordered: Sequence[float], one: float) -> float:
    """Median of all but one of the sorted numbers, without sorting the others again."""
    left_out = bisect_left(ordered, one)
    half = (len(ordered) - 1) // 2

    def at(index: int) -> float:
        return ordered[index if index < left_out else index + 1]

    return at(half) if len(ordered) % 2 == 0 else (at(half - 1) + at(half)) / 2


def _middle(source: Latency | None, levels: Levels) -> float | None:
    """p50 in seconds; the mean where p50 lies below the first bound; None with too few samples."""
    if source is None or source.distribution is None or source.distribution.count < levels.slow_samples:
        return None
    middle = source.distribution.quantile(0.5)
    if middle is None:
        return None
    return source.distribution.mean if middle.below is not None else middle.value


def _mismatch(
    workers: Sequence[Worker], what: str, get: Callable[[Identity], str | None]
) -> Iterator[Finding]:
    """Workers of one pool that say different versions or models."""
    said = {w.key: value for w in workers if w.state in READABLE and (value := get(w.identity))}
    kinds = Counter(said.values())
    if len(kinds) < 2:
        return
    usual, _ = kinds.most_common(1)[0]
    for worker in workers:
        value = said.get(worker.key)
        if value is not None and value != usual:
            yield _finding(
                worker,
                Severity.WARNING,
                f"{what}_mismatch",
                f"{what} {value}, the pool has {usual}",
                evidence=", ".join(f"{several(n, 'worker')} {name}" for name, n in kinds.most_common()),
                fix="bring the pool to one " + what,
            )


def _finding(worker: Worker, severity: Severity, kind: str, text: str, *, evidence: str, fix: str) -> Finding:
    return Finding(severity, kind, text, worker=worker.key, pool=worker.role, evidence=evidence, fix=fix)
