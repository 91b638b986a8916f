"""The judgement on a snapshot: every finding, worst first, with how long it has lasted.

Rules live beside this module (reach, pressure, balance, headline) and are pure; what they found before is
an immutable memory that the caller keeps, so that a finding neither flickers nor cries wolf: some kinds
must hold for a while before they are told, and most stay for some seconds after they were last seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pdtop.cluster.model import Finding, Role, Severity, Snapshot
from pdtop.insight import balance, drift, headline, launch, pressure, reach
from pdtop.insight.levels import DEFAULT_LEVELS, Levels

#: Seconds for which a kind must be seen without a break before it is told. All others are told at once.
HOLD: Mapping[str, float] = MappingProxyType(
    {
        "transfer_stalled": 10.0,  # right after an idle time one transfer without a first token is normal
        "metrics_unreachable": 5.0,
        "drain_not_in_force": 10.0,  # between the file and the router lies a moment
    }
)

#: Seconds for which a kind is still told after it was last seen, so that a value at its threshold is calm.
LINGER: Mapping[str, float] = MappingProxyType(
    {
        "restart": 60.0,
        "kv_pressure": 5.0,
        "kv_nearly_full": 5.0,
        "rank_imbalance": 5.0,
        "bootstrap_backlog": 5.0,
        "backlog_growing": 10.0,
        "bottleneck": 5.0,
        "transfer_failures": 15.0,
        "flaky": 10.0,
        "hot_worker": 10.0,
        "failing_requests": 10.0,
        "slow_worker": 10.0,
        "slo_ttft": 5.0,
        "slo_tpot": 5.0,
    }
)

#: Among findings of one severity: what explains most comes first; kinds that are not named follow.
ORDER = (
    "router_down",
    "no_workers",
    "router_not_ready",
    "no_usable_worker",
    "dead_but_routed",
    "down",
    "tls",
    "frozen",
    "running_without_progress",
    "transfer_stalled",
    "bottleneck",
    "kv_pressure",
    "config_broken",
    "failing_requests",
    "breaker_open",
    "unusable_in_router",
    "role_mismatch",
    "bootstrap_port_mismatch",
    "backlog_growing",
    "bootstrap_backlog",
    "rank_imbalance",
    "flaky",
    "slow_worker",
    "hot_worker",
    "restart",
)

_SEVERITY_RANK = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}
_KIND_RANK = {kind: index for index, kind in enumerate(ORDER)}

Key = tuple[str, str | None, Role | None, str | None]


@dataclass(frozen=True, slots=True)
class Seen:
    """One finding over time, on the caller's monotonic clock."""

    since: float
    last: float
    finding: Finding


@dataclass(frozen=True, slots=True)
class Memory:
    """What earlier snapshots showed; opaque to callers."""

    seen: Mapping[Key, Seen] = field(default_factory=dict)


NOTHING = Memory()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings to show, and the memory for the next snapshot."""

    findings: tuple[Finding, ...]
    memory: Memory


def judge(
    snapshot: Snapshot,
    now: float,
    memory: Memory = NOTHING,
    *,
    given: Iterable[Finding] = (),
    levels: Levels = DEFAULT_LEVELS,
) -> Judgement:
    """Findings of a snapshot, worst first. ``now`` is monotonic seconds; ``given`` are others' findings."""
    fresh = {_key(finding): finding for finding in (*given, *_raw(snapshot, levels))}
    seen: dict[Key, Seen] = {}
    for key, finding in fresh.items():
        before = memory.seen.get(key)
        since = now - (finding.since_s or 0.0)  # a rule may know of a longer time
        seen[key] = Seen(min(before.since, since) if before else since, now, finding)
    watched = {worker.key for worker in snapshot.workers}
    for key, old in memory.seen.items():
        gone = key not in seen and now - old.last > LINGER.get(key[0], 0.0)
        removed = old.finding.worker is not None and old.finding.worker not in watched
        if key not in seen and not gone and not removed:
            seen[key] = old
    shown = [
        replace(entry.finding, since_s=now - entry.since)
        for entry in seen.values()
        if entry.last - entry.since >= HOLD.get(entry.finding.kind, 0.0)
    ]
    return Judgement(tuple(sorted(shown, key=rank)), Memory(seen))


def findings(
    snapshot: Snapshot, *, given: Iterable[Finding] = (), levels: Levels = DEFAULT_LEVELS
) -> tuple[Finding, ...]:
    """Findings of one snapshot alone: without a past nothing can have lasted, so nothing is held back."""
    fresh = {_key(finding): finding for finding in (*given, *_raw(snapshot, levels))}
    return tuple(sorted(fresh.values(), key=rank))


def rank(finding: Finding) -> tuple[int, int, str, str]:
    """Sort key: worst first, then what explains most, then by name so that the order is stable."""
    return (
        _SEVERITY_RANK[finding.severity],
        _KIND_RANK.get(finding.kind, len(ORDER)),
        finding.kind,
        finding.worker or finding.router or finding.pool or "",
    )


def at_or_above(severity: Severity, threshold: Severity) -> bool:
    """Whether ``severity`` is at least as bad as ``threshold``."""
    return _SEVERITY_RANK[severity] <= _SEVERITY_RANK[threshold]


def _key(finding: Finding) -> Key:
    return (finding.kind, finding.worker, finding.pool, finding.router)


def _raw(snapshot: Snapshot, levels: Levels) -> Iterator[Finding]:
    yield from headline.findings(snapshot, levels)
    yield from pressure.pool_findings(snapshot, levels)
    yield from balance.findings(snapshot, levels)
    yield from drift.findings(snapshot)
    yield from launch.findings(snapshot)
    for worker in snapshot.workers:
        yield from reach.worker_findings(worker, snapshot, levels)
        yield from pressure.worker_findings(worker, snapshot, levels)
