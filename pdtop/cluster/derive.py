"""From one worker's page and its growth to the numbers of the console: the rules of what means what.

Sources of the rules (SGLang 0.5.23, measured): P's backlog is queue + bootstrap with what is being sent
beside it, D's is queue + prealloc + transfer; a part that is not on the page is unknown and makes the sum a
lower bound. TPOT is per request from 0.5.22, before that per token. A prefill worker's own TTFT is only part
of what the user waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from weakref import WeakKeyDictionary

from pdtop.cluster.lazy import LazyMapping
from pdtop.cluster.model import Backlog, Latency, PageFacts, Rank, Role
from pdtop.cluster.period import Period
from pdtop.metrics import catalogue as c
from pdtop.metrics.distribution import Distribution
from pdtop.metrics.exposition import Layout
from pdtop.metrics.worker_page import WorkerNumbers

BACKLOG_PARTS: Mapping[Role, tuple[str, ...]] = {
    Role.PREFILL: (c.QUEUE, c.BOOTSTRAP),
    Role.DECODE: (c.QUEUE, c.PREALLOC, c.TRANSFER),
    Role.UNIFIED: (c.QUEUE,),
    Role.UNKNOWN: (c.QUEUE,),
}

_HITS = (c.EFFECTIVE_DEVICE_HIT, c.EFFECTIVE_HOST_HIT, c.EFFECTIVE_STORAGE_HIT)
_ROLE_OF_ENGINE_TYPE = {"prefill": Role.PREFILL, "decode": Role.DECODE}


@dataclass(frozen=True, slots=True)
class Derived:
    """One page and its growth in the terms of :class:`pdtop.cluster.model.Worker`; None is not known."""

    running: float | None
    backlog: Backlog
    inflight: float | None
    retracted: float | None
    kv_use: float | None
    kv_use_worst: float | None
    kv_worst_rank: str | None
    kv_used_tokens: float | None
    hit_tokens: float | None  # prompt tokens in the window that came from a cache, and of how many
    lookup_tokens: float | None
    hit_rate: float | None
    prompt_tokens_per_s: float | None
    generated_tokens_per_s: float | None
    tokens_per_s: float | None
    requests: float | None
    requests_per_s: float | None
    fwd_occupancy: float | None
    spec_accept_rate: float | None
    gen_throughput: float | None
    ttft: Latency | None
    tpot: Latency | None
    queue_time: Latency | None
    stages: Mapping[str, Distribution]
    kv_transfer_ms: Distribution | None
    transfer_failures: float | None
    resets: int
    ranks: tuple[Rank, ...]
    page: PageFacts
    model_name: str = ""
    kv_capacity_tokens: float | None = None
    role: Role = Role.UNKNOWN  # as far as the page tells
    seconds: float | None = None


def role_of_page(numbers: WorkerNumbers) -> Role:
    """The role that the page's own labels tell; ``unified`` there proves nothing (constant before 0.5.7)."""
    return _ROLE_OF_ENGINE_TYPE.get(numbers.engine_type, Role.UNKNOWN)


def derive(period: Period[WorkerNumbers], role: Role) -> Derived:
    """All numbers of one worker of a known role."""
    page = period.newest
    kv = page.gauge_by_rank(c.TOKEN_USAGE)
    worst = max(kv, key=lambda rank: kv[rank], default=None)
    hits, lookups = cache_tokens(period)
    prompt = period.rate(c.PROMPT_TOKENS)
    computed = _first(period.rate(c.REALTIME_PREFILL_COMPUTE), prompt)
    generated = _first(period.rate(c.REALTIME_DECODE), period.rate(c.GENERATION_TOKENS))
    source = "unified" if role is Role.UNKNOWN else str(role)
    running = page.gauge(c.RUNNING)
    waiting = backlog({part: page.gauge(part) for part in BACKLOG_PARTS[role]})
    tokens = computed if role is Role.PREFILL else generated
    hit_rate = page.gauge(c.CACHE_HIT_RATE)
    if hits is not None and lookups is not None:
        hit_rate = hits / lookups if lookups else None
    kv_worst = kv[worst] if worst is not None else None
    return Derived(
        running=running,
        backlog=waiting,
        inflight=page.gauge(c.INFLIGHT) if role is Role.PREFILL else None,
        retracted=page.gauge(c.RETRACTED) if role is not Role.PREFILL else None,
        kv_use=fmean(kv.values()) if kv else None,
        kv_use_worst=kv_worst,
        kv_worst_rank=worst,
        kv_used_tokens=page.gauge(c.KV_USED_TOKENS),
        hit_tokens=hits,
        lookup_tokens=lookups,
        hit_rate=hit_rate,
        prompt_tokens_per_s=_first(prompt, computed),
        generated_tokens_per_s=generated,
        tokens_per_s=tokens,
        requests=period.increase(c.REQUESTS),
        requests_per_s=period.rate(c.REQUESTS),
        fwd_occupancy=page.gauge(c.FWD_OCCUPANCY),
        spec_accept_rate=page.gauge(c.SPEC_ACCEPT_RATE),
        gen_throughput=page.gauge(c.GEN_THROUGHPUT),
        ttft=latency(period, source, (c.TTFT,)),
        tpot=latency(period, source, (c.TPOT, c.ITL, c.TPOT_OLD)),
        queue_time=latency(period, source, (c.QUEUE_TIME,)),
        stages=LazyMapping(partial(period.by, c.STAGE, "stage")),
        kv_transfer_ms=period.distribution(c.KV_TRANSFER_LATENCY_MS),
        transfer_failures=None if period.lifetime else failures(period),
        resets=period.resets,
        ranks=ranks(period, role, Rank("", running, waiting, kv_worst, tokens, hit_rate)),
        page=PageFacts(page.lines, page.bad_lines, page.duplicates, page.size),
        model_name=page.model_name,
        kv_capacity_tokens=page.gauge(c.KV_CAPACITY_TOKENS),
        role=role_of_page(page),
        seconds=period.seconds,
    )


def backlog(parts: Mapping[str, float | None]) -> Backlog:
    """The sum of the known parts; a lower bound if one is not known, None if none is."""
    known = [value for value in parts.values() if value is not None]
    return Backlog(
        total=sum(known) if known else None,
        lower_bound=bool(known) and len(known) < len(parts),
        parts=dict(parts),
    )


def latency(period: Period[WorkerNumbers], source: str, concepts: Iterable[str]) -> Latency | None:
    """From the first of the concepts that the page has; None if it has none of them."""
    for concept in concepts:
        metric = family(period.newest, concept)
        if metric is None:
            continue
        split = LazyMapping(partial(period.split, concept))
        return Latency(source, metric, period.distribution(concept), split)
    return None


def family(numbers: WorkerNumbers, concept: str) -> str | None:
    """The exported family that a histogram is read from; None if the page has none."""
    if concept not in numbers.plan.histograms:
        return None
    known = _families.get(numbers.layout)
    if known is None:
        known = _families[numbers.layout] = {}
    if concept not in known:
        on_page = {one.family for one in numbers.layout.series}
        names = (text for name in c.WORKER[concept].names for text in c.spellings(name))
        known[concept] = next((text for text in names if text in on_page), None)
    return known[concept]


_families: WeakKeyDictionary[Layout, dict[str, str | None]] = WeakKeyDictionary()


def cache_tokens(period: Period[WorkerNumbers]) -> tuple[float | None, float | None]:
    """(prompt tokens found in a cache, prompt tokens in all) in the window.

    ``input`` of the effective tokens are those computed (0.5.20+); before it the live tokens tell the same.
    """
    for computing, caches in (
        (c.EFFECTIVE_INPUT, _HITS),
        (c.REALTIME_PREFILL_COMPUTE, (c.REALTIME_PREFILL_CACHE,)),
    ):
        computed = period.increase(computing)
        if computed is not None:
            hits = sum(period.increase(concept) or 0.0 for concept in caches)
            return hits, hits + computed
    return None, None


def failures(period: Period[WorkerNumbers]) -> float | None:
    """Failed handshakes and transfers in the window; neither exists before the first one (SGLang 0.5.23)."""
    known = [period.increase(concept) for concept in (c.TRANSFER_FAILED, c.BOOTSTRAP_FAILED)]
    counted = [value for value in known if value is not None]
    return sum(counted) if counted else None


def ranks(period: Period[WorkerNumbers], role: Role, whole: Rank) -> tuple[Rank, ...]:
    """Every DP rank with its own numbers; ``whole`` are those of all together, for a worker with one."""
    page = period.newest
    if len(page.ranks) == 1:
        return (replace(whole, dp_rank=page.ranks[0]),)
    running = page.gauge_by_rank(c.RUNNING)
    parts = {part: page.gauge_by_rank(part) for part in BACKLOG_PARTS[role]}
    kv = page.gauge_by_rank(c.TOKEN_USAGE)
    hit = page.gauge_by_rank(c.CACHE_HIT_RATE)
    tokens: Mapping[str, float] = {}
    window = period.window
    if window is not None and window.seconds > 0:
        concept = c.REALTIME_PREFILL_COMPUTE if role is Role.PREFILL else c.REALTIME_DECODE
        tokens = {r: n / window.seconds for r, n in window.growth.counter_by_rank(concept).items()}
    return tuple(
        Rank(
            dp_rank=rank,
            running=running.get(rank),
            backlog=backlog({part: values.get(rank) for part, values in parts.items()}),
            kv_use=kv.get(rank),
            tokens_per_s=tokens.get(rank),
            hit_rate=hit.get(rank),
        )
        for rank in page.ranks
    )


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
