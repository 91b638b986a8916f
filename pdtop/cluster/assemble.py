"""From workers and routers to pools, headline and goodput: merged first, quantiles and rates afterwards.

A worker whose numbers are not of now (refused, timed out, frozen) stays visible with their age, but is in no
sum: its requests are gone, and counting them would hide that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean

from pdtop.cluster.derive import Derived
from pdtop.cluster.lazy import LazyMapping
from pdtop.cluster.model import (
    Backlog,
    Latency,
    Pool,
    Role,
    Router,
    RouterOpinion,
    Worker,
)
from pdtop.metrics.distribution import Distribution, merge

Get = Callable[[Worker], float | None]


def shares(
    roles: Mapping[str, Role],
    dispatched: Mapping[str, float],
    own: Mapping[str, float],
) -> dict[str, float]:
    """Each worker's part of its pool's requests in the window, by key.

    As the routers counted them (``dispatched``); in a pool of which they count none, as the workers did.
    """
    found: dict[str, float] = {}
    for role in set(roles.values()):
        members = [key for key, one in roles.items() if one is role]
        counts = {key: dispatched[key] for key in members if key in dispatched}
        counts = counts or {key: own[key] for key in members if key in own}
        total = sum(counts.values())
        if total > 0:
            found.update((key, count / total) for key, count in counts.items())
    return found


def dispatched(opinions: Iterable[RouterOpinion]) -> float | None:
    """Requests that all routers sent to one worker in the window; None if none of them counts."""
    counts = [opinion.requests for opinion in opinions if opinion.requests is not None]
    return sum(counts) if counts else None


def pool(role: Role, workers: Sequence[Worker], derived: Mapping[str, Derived], *, policy: str = "") -> Pool:
    """All workers of one role as one."""
    members = [worker for worker in workers if worker.role is role]
    live = [worker for worker in members if is_live(worker)]
    running = [worker.running for worker in live if worker.running is not None]
    pages = [derived[worker.key] for worker in live if worker.key in derived]
    kv = _known(live, lambda w: w.kv_use)
    return Pool(
        role=role,
        total=len(members),
        usable=sum(worker.usable is True for worker in members),
        usable_unknown=sum(worker.usable is None for worker in members),
        draining=sum(worker.draining for worker in members),
        running=sum(running) if running else None,
        running_unknown=len(members) - len(running),
        backlog=_backlog(live),
        inflight=_sum(live, lambda w: w.inflight),
        kv_use=fmean(kv) if kv else None,
        kv_use_worst=max(_known(live, lambda w: w.kv_use_worst), default=None),
        hit_rate=_hit_rate(pages, live),
        tokens_per_s=_sum(live, lambda w: w.tokens_per_s),
        requests_per_s=_sum(live, lambda w: w.requests_per_s),
        ttft=merged([worker.ttft for worker in live]),
        tpot=merged([worker.tpot for worker in live]),
        queue_time=merged([worker.queue_time for worker in live]),
        fwd_occupancy_mean=_mean(live, lambda w: w.fwd_occupancy),
        spec_accept_rate_mean=_mean(live, lambda w: w.spec_accept_rate),
        gen_throughput_sum=_sum(live, lambda w: w.gen_throughput),
        policy=policy,
    )


def is_live(worker: Worker) -> bool:
    """Whether its numbers are of now and belong into a sum."""
    return bool(worker.source) and not worker.stale


def merged(latencies: Iterable[Latency | None]) -> Latency | None:
    """Latencies of several workers as one: buckets added.

    Only what is the same measure can be added: if some workers export another family (a pool of two
    releases), the family of most of them is taken. Of different bounds nothing can be said.
    """
    known = [latency for latency in latencies if latency is not None]
    if not known:
        return None
    metric = Counter(latency.metric for latency in known).most_common(1)[0][0]
    same = [latency for latency in known if latency.metric == metric]
    return Latency(
        same[0].source,
        metric,
        _merge(latency.distribution for latency in same),
        LazyMapping(partial(_merged_split, same)),
        summary=same[0].summary if len(same) == 1 else None,
    )


def _merged_split(latencies: Sequence[Latency]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    for value in ("true", "false"):
        one = _merge(latency.split.get(value) for latency in latencies)
        if one is not None:
            found[value] = one
    return found


def headline_ttft(
    routers: Iterable[Router], decode: Latency | None, unified: Latency | None
) -> Latency | None:
    """The user's TTFT: the router's own if it has one, else the decode workers'.

    A router that has counted nothing gives way to decode workers that have: its traffic goes elsewhere.
    """
    router = merged([router.ttft for router in routers])
    workers = decode if decode is not None else unified
    if router is None or (not router.count and workers is not None and workers.count):
        return workers
    return router


def prefill_part(routers: Iterable[Router], prefill: Latency | None) -> Latency | None:
    """The prefill part of the TTFT: the router's prefill duration, else the prefill workers' own TTFT."""
    router = merged([router.prefill_duration for router in routers])
    return router if router is not None else prefill


def _backlog(workers: Sequence[Worker]) -> Backlog:
    """Summed by part; a lower bound if any worker's is one or is not known."""
    known = [worker.backlog for worker in workers if worker.backlog.total is not None]
    parts: dict[str, float | None] = {}
    for backlog in known:
        for name, value in backlog.parts.items():
            before = parts.get(name)
            parts[name] = value if before is None else before if value is None else before + value
    if not known:
        return Backlog(None)
    return Backlog(
        total=sum(backlog.total for backlog in known if backlog.total is not None),
        lower_bound=len(known) < len(workers) or any(backlog.lower_bound for backlog in known),
        parts=parts,
    )


def _hit_rate(pages: Sequence[Derived], workers: Sequence[Worker]) -> float | None:
    """Tokens found over tokens looked up, all together; without those counts the mean of the rates."""
    lookups = sum(page.lookup_tokens or 0.0 for page in pages)
    if lookups:
        return sum(page.hit_tokens or 0.0 for page in pages) / lookups
    return _mean(workers, lambda worker: worker.hit_rate)


def _merge(distributions: Iterable[Distribution | None]) -> Distribution | None:
    return merge([distribution for distribution in distributions if distribution is not None])


def _known(workers: Iterable[Worker], get: Get) -> list[float]:
    return [value for value in map(get, workers) if value is not None]


def _sum(workers: Iterable[Worker], get: Get) -> float | None:
    known = _known(workers, get)
    return sum(known) if known else None


def _mean(workers: Iterable[Worker], get: Get) -> float | None:
    known = _known(workers, get)
    return fmean(known) if known else None
