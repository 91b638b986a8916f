"""Running, backlog and KV of one worker out of ``/v1/loads``, in the same terms as out of its metrics page.

SGLang 0.5.23, measured: ``num_waiting_reqs`` already holds P's bootstrap queue and D's prealloc, transfer and
retracted queues, but not P's inflight; ``num_running_reqs`` is always 0 on P; a rank with timestamp 0 has
never reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

from pdtop.cluster.model import Backlog, Rank, Role
from pdtop.cluster.readings import LoadRank, Loads

_PARTS: dict[Role, tuple[tuple[str, Callable[[LoadRank], float | None]], ...]] = {
    Role.PREFILL: (("queue", lambda r: r.queue), ("bootstrap", lambda r: r.bootstrap)),
    Role.DECODE: (
        ("queue", lambda r: r.queue),
        ("prealloc", lambda r: r.prealloc),
        ("transfer", lambda r: r.transfer),
    ),
    Role.UNIFIED: (("queue", lambda r: r.queue),),
    Role.UNKNOWN: (("queue", lambda r: r.queue),),
}


@dataclass(frozen=True, slots=True)
class Queues:
    """What waits and runs, over all ranks that reported."""

    running: float | None
    backlog: Backlog
    inflight: float | None
    retracted: float | None
    kv_use: float | None
    kv_use_worst: float | None
    kv_worst_rank: str | None
    hit_rate: float | None
    gen_throughput: float | None
    kv_capacity_tokens: float | None
    kv_used_tokens: float | None
    ranks: tuple[Rank, ...]


def queues(loads: Loads, role: Role) -> Queues:
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
        gen_throughput=_sum([rank.gen_throughput for rank in used]),
        kv_capacity_tokens=_sum([rank.capacity_tokens for rank in used]),
        kv_used_tokens=_sum([rank.used_tokens for rank in used]),
        ranks=ranks,
    )


def _running(ranks: Iterable[LoadRank], role: Role) -> float | None:
    total = _sum([rank.running for rank in ranks])
    return None if role is Role.PREFILL and total == 0 else total


def _backlog(ranks: list[LoadRank], role: Role, *, complete: bool) -> Backlog:
    parts = {name: _sum([get(rank) for rank in ranks]) for name, get in _PARTS[role]}
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
