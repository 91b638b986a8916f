"""What one worker did over a stretch of time: rates, hit rate and latencies out of its page's growth.

Sources of the rules (SGLang 0.5.23, measured): live token counters move during requests, the others at their
end. TPOT is per request from 0.5.22, before that per token. A prefill worker's own TTFT is only part of what
the user waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from pdtop.cluster.lazy import LazyMapping
from pdtop.cluster.model import Latency, Role
from pdtop.cluster.period import Period
from pdtop.metrics import catalogue as c
from pdtop.metrics.distribution import Distribution
from pdtop.metrics.exposition import Layout
from pdtop.metrics.worker_page import WorkerNumbers

_HITS = (c.EFFECTIVE_DEVICE_HIT, c.EFFECTIVE_HOST_HIT, c.EFFECTIVE_STORAGE_HIT)
_ROLE_OF_ENGINE_TYPE = {"prefill": Role.PREFILL, "decode": Role.DECODE}


@dataclass(frozen=True, slots=True)
class Derived:
    """One page and its growth in the terms of :class:`pdtop.cluster.model.Worker`; None is not known.

    ``hit_tokens`` of ``lookup_tokens`` prompt tokens came from a cache; both None where nobody counts.
    """

    hit_tokens: float | None
    lookup_tokens: float | None
    prompt_tokens_per_s: float | None
    generated_tokens_per_s: float | None
    tokens_per_s: float | None
    rank_tokens_per_s: Mapping[str, float]  # by DP rank, of a worker with several
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
    transfer_failures_per_s: float | None
    resets: int
    seconds: float | None  # of the window; None without one

    @property
    def hit_rate(self) -> float | None:
        """None if nothing was looked up, or nobody counts."""
        if self.hit_tokens is None or not self.lookup_tokens:
            return None
        return self.hit_tokens / self.lookup_tokens


def role_of_page(numbers: WorkerNumbers) -> Role:
    """The role that the page's own labels tell; ``unified`` there proves nothing (constant before 0.5.7)."""
    return _ROLE_OF_ENGINE_TYPE.get(numbers.engine_type, Role.UNKNOWN)


def derive(period: Period[WorkerNumbers], role: Role) -> Derived:
    """All that a worker of a known role did in a period."""
    page, seconds = period.newest, period.seconds
    hits, lookups = cache_tokens(period)
    prompt = period.rate(c.PROMPT_TOKENS)
    computed = _first(period.rate(c.REALTIME_PREFILL_COMPUTE), prompt)
    generated = _first(period.rate(c.REALTIME_DECODE), period.rate(c.GENERATION_TOKENS))
    requests = period.increase(c.REQUESTS)
    failed = None if period.lifetime else failures(period)
    source = "unified" if role is Role.UNKNOWN else str(role)
    return Derived(
        hit_tokens=hits,
        lookup_tokens=lookups,
        prompt_tokens_per_s=_first(prompt, computed),
        generated_tokens_per_s=generated,
        tokens_per_s=computed if role is Role.PREFILL else generated,
        rank_tokens_per_s=rank_tokens(period, role),
        requests=requests,
        requests_per_s=requests / seconds if requests is not None and seconds else None,
        fwd_occupancy=page.gauge(c.FWD_OCCUPANCY),
        spec_accept_rate=page.gauge(c.SPEC_ACCEPT_RATE),
        gen_throughput=page.gauge(c.GEN_THROUGHPUT),
        ttft=latency(period, source, (c.TTFT,)),
        tpot=latency(period, source, (c.TPOT, c.ITL, c.TPOT_OLD)),
        queue_time=latency(period, source, (c.QUEUE_TIME,)),
        stages=LazyMapping(partial(period.by, c.STAGE, "stage")),
        kv_transfer_ms=period.distribution(c.KV_TRANSFER_LATENCY_MS),
        transfer_failures=failed,
        transfer_failures_per_s=failed / seconds if failed is not None and seconds else None,
        resets=period.resets,
        seconds=seconds,
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


def rank_tokens(period: Period[WorkerNumbers], role: Role) -> Mapping[str, float]:
    """Tokens per second of each DP rank; empty for a worker with one."""
    window = period.window
    if window is None or window.seconds <= 0 or len(period.newest.ranks) == 1:
        return {}
    concept = c.REALTIME_PREFILL_COMPUTE if role is Role.PREFILL else c.REALTIME_DECODE
    return {rank: n / window.seconds for rank, n in window.growth.counter_by_rank(concept).items()}


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
