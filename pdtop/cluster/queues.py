"""What waits and runs on one worker, out of its metrics page or out of ``/v1/loads``, in the same terms.

SGLang 0.5.23, measured. P's backlog is queue + bootstrap, with what is being sent beside it; D's is queue +
prealloc + transfer. A part that is not told is unknown and makes the sum a lower bound. In ``/v1/loads``
``num_waiting_reqs`` already holds P's bootstrap queue and D's prealloc, transfer and retracted queues, but
not P's inflight; ``num_running_reqs`` is always 0 on P; a rank with timestamp 0 has never reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from pdtop.cluster.model import Backlog, Rank, Role
from pdtop.cluster.readings import LoadRank, Loads
from pdtop.metrics import catalogue as c
from pdtop.metrics.worker_page import WorkerNumbers

#: The parts of a backlog in display order; their names are those of the catalogue's concepts, too.
PARTS: Mapping[Role, tuple[str, ...]] = {
    Role.PREFILL: (c.QUEUE, c.BOOTSTRAP),
    Role.DECODE: (c.QUEUE, c.PREALLOC, c.TRANSFER),
    Role.UNIFIED: (c.QUEUE,),
    Role.UNKNOWN: (c.QUEUE,),
}
_OF_RANK: Mapping[str, Callable[[LoadRank], float | None]] = {
    c.QUEUE: lambda rank: rank.queue,
    c.BOOTSTRAP: lambda rank: rank.bootstrap,
    c.PREALLOC: lambda rank: rank.prealloc,
    c.TRANSFER: lambda rank: rank.transfer,
}


@dataclass(frozen=True, slots=True)
class Queues:
    """What waits, runs and fills the KV memory, over all ranks that reported. ``hit_rate`` is of the last
    report, not of a window."""

    running: float | None
    backlog: Backlog
    inflight: float | None
    retracted: float | None
    kv_use: float | None
    kv_use_worst: float | None
    kv_worst_rank: str | None
    hit_rate: float | None
    kv_capacity_tokens: float | None
    kv_used_tokens: float | None
    ranks: tuple[Rank, ...]


NOTHING = Queues(None, Backlog(None), None, None, None, None, None, None, None, None, ())


def from_page(page: WorkerNumbers, role: Role) -> Queues:
    """Out of the gauges of a metrics page, which may be 30 s old after traffic stops."""
    kv = page.gauge_by_rank(c.TOKEN_USAGE)
    worst = max(kv, key=lambda rank: kv[rank], default=None)
    running = page.gauge(c.RUNNING)
    waiting = summed({part: page.gauge(part) for part in PARTS[role]})
    hit_rate = page.gauge(c.CACHE_HIT_RATE)
    kv_worst = kv[worst] if worst is not None else None
    if len(page.ranks) == 1:
        ranks: tuple[Rank, ...] = (Rank(page.ranks[0], running, waiting, kv_worst, hit_rate=hit_rate),)
    else:
        ranks = _page_ranks(page, role, kv)
    return Queues(
        running=running,
        backlog=waiting,
        inflight=page.gauge(c.INFLIGHT) if role is Role.PREFILL else None,
        retracted=page.gauge(c.RETRACTED) if role is not Role.PREFILL else None,
        kv_use=fmean(kv.values()) if kv else None,
        kv_use_worst=kv_worst,
        kv_worst_rank=worst,
        hit_rate=hit_rate,
        kv_capacity_tokens=page.gauge(c.KV_CAPACITY_TOKENS),
        kv_used_tokens=page.gauge(c.KV_USED_TOKENS),
        ranks=ranks,
    )


def _page_ranks(page: WorkerNumbers, role: Role, kv: Mapping[str, float]) -> tuple[Rank, ...]:
    running = page.gauge_by_rank(c.RUNNING)
    parts = {part: page.gauge_by_rank(part) for part in PARTS[role]}
    hit_rate = page.gauge_by_rank(c.CACHE_HIT_RATE)
    return tuple(
        Rank(
            dp_rank=rank,
            running=running.get(rank),
            backlog=summed({part: values.get(rank) for part, values in parts.items()}),
            kv_use=kv.get(rank),
            hit_rate=hit_rate.get(rank),
        )
        for rank in page.ranks
    )


def summed(parts: Mapping[str, float | None]) -> Backlog:
    """The sum of the known parts; a lower bound if one is not known, None if none is."""
    known = [value for value in parts.values() if value is not None]
    return Backlog(
        total=sum(known) if known else None,
        lower_bound=bool(known) and len(known) < len(parts),
        parts=dict(parts),
    )


def from_loads(loads: Loads, role: Role) -> Queues:
    """All ranks together. A rank that never reported has no numbers and makes sums lower bounds."""
    used = [rank for rank in loads.ranks if rank.reported]
    kv = {rank.dp_rank: use for rank in used if (use := _kv_use(rank)) is not None}
    worst = max(kv, key=lambda dp_rank: kv[dp_rank], default=None)
    complete = len(used) == len(loads.ranks) and all(rank.waiting is not None for rank in used)
    running, waiting = _running(used, role), _backlog(used, role, complete=complete)
    if len(loads.ranks) == 1:
        ranks: tuple[Rank, ...] = (_rank(loads.ranks[0], running, waiting, loads.timestamp),)
    else:
        ranks = tuple(
            _rank(rank, _running([rank], role), _backlog([rank], role, complete=True), loads.timestamp)
            for rank in loads.ranks
        )
    return Queues(
        running=running,
        backlog=waiting,
        inflight=_sum([rank.inflight for rank in used]) if role is Role.PREFILL else None,
        retracted=_sum([rank.retracted for rank in used]) if role is not Role.PREFILL else None,
        kv_use=fmean(kv.values()) if kv else None,
        kv_use_worst=kv[worst] if worst is not None else None,
        kv_worst_rank=worst,
        hit_rate=_mean([rank.cache_hit_rate for rank in used]),
        kv_capacity_tokens=_sum([rank.capacity_tokens for rank in used]),
        kv_used_tokens=_sum([rank.used_tokens for rank in used]),
        ranks=ranks,
    )


def complete(loads: Queues, role: Role) -> bool:
    """Whether a metrics page could add nothing to these. On P it knows what runs, on none less."""
    return role is not Role.PREFILL and None not in (loads.running, loads.backlog.total, loads.kv_use)


def completed(loads: Queues, page: Queues, role: Role) -> Queues:
    """``/v1/loads`` with what only the page knows: P's running, and what an old release leaves out."""
    running = page.running if role is Role.PREFILL and page.running is not None else loads.running
    kv = loads if loads.kv_use is not None else page
    return Queues(
        running=running,
        backlog=loads.backlog if loads.backlog.total is not None else page.backlog,
        inflight=loads.inflight if loads.inflight is not None else page.inflight,
        retracted=loads.retracted if loads.retracted is not None else page.retracted,
        kv_use=kv.kv_use,
        kv_use_worst=kv.kv_use_worst,
        kv_worst_rank=kv.kv_worst_rank,
        hit_rate=page.hit_rate,
        kv_capacity_tokens=loads.kv_capacity_tokens or page.kv_capacity_tokens,
        kv_used_tokens=loads.kv_used_tokens if loads.kv_used_tokens is not None else page.kv_used_tokens,
        ranks=_completed_ranks(loads.ranks, page.ranks, running),
    )


def _completed_ranks(
    loads: tuple[Rank, ...], page: tuple[Rank, ...], running: float | None
) -> tuple[Rank, ...]:
    if len(loads) == 1:
        return (replace(loads[0], running=running),)
    by_rank = {rank.dp_rank: rank.running for rank in page}
    return tuple(
        rank if rank.running is not None else replace(rank, running=by_rank.get(rank.dp_rank))
        for rank in loads
    )


def _running(ranks: Iterable[LoadRank], role: Role) -> float | None:
    total = _sum([rank.running for rank in ranks])
    return None if role is Role.PREFILL and total == 0 else total


def _backlog(ranks: list[LoadRank], role: Role, *, complete: bool) -> Backlog:
    parts = {part: _sum([_OF_RANK[part](rank) for rank in ranks]) for part in PARTS[role]}
    known = [value for value in parts.values() if value is not None]
    waiting = _sum([rank.waiting for rank in ranks])
    if waiting is not None:
        retracted = (_sum([rank.retracted for rank in ranks]) or 0.0) if role is not Role.PREFILL else 0.0
        if parts["queue"] is None and len(known) == len(parts) - 1:
            parts["queue"] = max(0.0, waiting - sum(known) - retracted)
        if retracted:
            parts["retracted"] = retracted
        return Backlog(waiting, lower_bound=not complete, parts=parts)
    if not known:
        return Backlog(None, parts=parts)
    return Backlog(sum(known), lower_bound=not complete or len(known) < len(parts), parts=parts)


def _rank(rank: LoadRank, running: float | None, waiting: Backlog, now: float | None) -> Rank:
    if not rank.reported:
        return Rank(rank.dp_rank, None, Backlog(None), None)
    age = now - rank.timestamp if now is not None and rank.timestamp is not None else None
    return Rank(
        dp_rank=rank.dp_rank,
        running=running,
        backlog=waiting,
        kv_use=_kv_use(rank),
        hit_rate=rank.cache_hit_rate,
        age_s=max(0.0, age) if age is not None else None,
    )


def _kv_use(rank: LoadRank) -> float | None:
    if rank.token_usage is not None:
        return rank.token_usage
    if rank.used_tokens is not None and rank.capacity_tokens:
        return rank.used_tokens / rank.capacity_tokens
    return None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
