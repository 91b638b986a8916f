"""The words of the product as frozen data: snapshot, pool, worker, router, finding.

Everything a front end shows comes from a :class:`Snapshot`. Nothing in here does I/O. ``None`` always means
"not known" and is never to be shown as 0. Units: seconds, tokens, requests, ratios 0..1, unless a field says
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pdtop.metrics.distribution import Distribution, Quantile

if TYPE_CHECKING:
    from pdtop.metrics.router_page import Summary


class Role(StrEnum):
    """What a worker does. ``UNIFIED`` workers do both and belong to neither pool."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"
    UNKNOWN = "unknown"


class State(StrEnum):
    """How the newest reading of a worker or router ended (the whole list; words in ``reason``)."""

    OK = "ok"
    OK_WITH_WARNINGS = "ok_with_warnings"  # read, but some lines were bad or repeated
    PARTIAL = "partial"  # the body ended early
    AUTH = "auth"  # 401 or 403
    METRICS_DISABLED = "metrics_disabled"  # the worker answers, /metrics is 404
    NOT_METRICS = "not_metrics"  # 200, but no metrics in it
    REDIRECT = "redirect"  # to another origin, or in a circle
    HTTP_ERROR = "http_error"  # any other status
    TIMEOUT = "timeout"
    REFUSED = "refused"  # nothing listens, or the network says no
    TLS = "tls"  # certificate or handshake
    FROZEN = "frozen"  # answers 200 with values that no longer move


#: States in which the numbers of the newest reading can be used.
READABLE = frozenset({State.OK, State.OK_WITH_WARNINGS, State.PARTIAL, State.METRICS_DISABLED})


class Severity(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"  # deliberate or merely good to know


class Health(StrEnum):
    """The router's own opinion of a worker."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    PENDING = "pending"


class Breaker(StrEnum):
    """The router's circuit breaker for a worker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Backlog:
    """Requests that wait, with the parts in display order (``None`` = the worker does not export the part).

    Prefill: queue, bootstrap. Decode: queue, prealloc, transfer. ``total`` adds the known parts; with an
    unknown part it is a lower bound. ``total`` is None if nothing is known.
    """

    total: float | None
    lower_bound: bool = False
    parts: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency over the window. ``source`` says whose: ``router``, ``decode``, ``prefill`` or ``unified``.

    ``metric`` is the exported family. ``distribution`` is None when nothing is known; with a count of 0
    nothing finished in the window. ``split`` has it by ``is_streaming`` ("true", "false") where the engine
    does.
    ``summary`` stands in where a router exports its own quantiles instead of buckets.
    """

    source: str
    metric: str
    distribution: Distribution | None
    split: Mapping[str, Distribution] = field(default_factory=dict, compare=False)
    summary: Summary | None = None

    @property
    def streaming(self) -> Distribution | None:
        return self.split.get("true")

    @property
    def non_streaming(self) -> Distribution | None:
        return self.split.get("false")

    @property
    def approximate(self) -> bool:
        """Quantiles that the exporter made itself: of what time, only it knows, and they cannot be merged."""
        return self.distribution is None and self.summary is not None

    @property
    def count(self) -> float | None:
        """Observations in the window."""
        if self.distribution is not None:
            return self.distribution.count
        return self.summary.count if self.summary is not None else None

    @property
    def mean(self) -> float | None:
        if self.distribution is not None:
            return self.distribution.mean
        if self.summary is None or not self.summary.count or self.summary.sum is None:
            return None
        return self.summary.sum / self.summary.count

    def quantile(self, q: float) -> Quantile | None:
        """The ``q`` quantile (0..1); None if nothing was observed or it is not known."""
        if self.distribution is not None:
            return self.distribution.quantile(q)
        value = self.summary.quantile(q) if self.summary is not None and self.summary.count else None
        return Quantile(value) if value is not None else None


@dataclass(frozen=True, slots=True)
class Rank:
    """One DP rank of a worker. ``dp_rank`` is the label's text ("0", "1", ...), "" if there is none."""

    dp_rank: str
    running: float | None
    backlog: Backlog
    kv_use: float | None
    tokens_per_s: float | None = None
    hit_rate: float | None = None
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class RouterOpinion:
    """What one router says of one worker; kept apart from what the worker says of itself."""

    router: str
    worker_ids: tuple[str, ...] = ()
    listed: bool = True
    health: Health | None = None
    breaker: Breaker | None = None
    breaker_since_s: float | None = None  # time in this breaker state, as far as seen
    inflight: float | None = None
    load: float | None = None
    requests: float | None = None  # dispatches in the window
    requests_per_s: float | None = None
    share: float | None = None  # of its pool's dispatches in the window
    failure_rate: float | None = None  # failed part of its dispatches in the window
    weight: float | None = None
    role: Role | None = None  # as its list says
    bootstrap_port: int | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the worker says it is, from ``/server_info`` and friends; secrets were stripped at the door."""

    version: str | None = None
    model: str | None = None
    tp_size: int | None = None
    pp_size: int | None = None
    dp_size: int | None = None  # number of DP ranks
    transfer_backend: str | None = None
    bootstrap_port: int | None = None
    max_running_requests: int | None = None
    kv_capacity_tokens: int | None = None
    flags: Mapping[str, str] = field(default_factory=dict)  # other launch arguments worth showing
    role: Role = Role.UNKNOWN  # what it does now, whatever config and routers take it for


@dataclass(frozen=True, slots=True)
class PageFacts:
    """How well the newest metrics page could be read."""

    lines: int
    bad_lines: int
    duplicates: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker in a snapshot. ``key`` is its canonical ``host:port`` and stays while it is watched."""

    key: str
    name: str  # as written in the config or by the router; cleaned for display
    role: Role
    state: State | None  # None: not asked yet
    reason: str = ""  # the state in words, with status or error; empty when ok
    fix: str = ""  # what to do about it
    usable: bool | None = None  # can take a new request now; None: not known
    unusable_because: str = ""
    draining: bool = False
    age_s: float | None = None  # of the numbers below; grows while reading fails
    stale: bool = False  # the numbers are older than they should be
    source: str = ""  # where running/backlog came from: "/metrics" or "/v1/loads"
    running: float | None = None
    backlog: Backlog = field(default_factory=lambda: Backlog(None))
    inflight: float | None = None  # prefill: KV being sent
    retracted: float | None = None  # decode: put back for lack of KV space
    kv_use: float | None = None  # mean over DP ranks
    kv_use_worst: float | None = None
    kv_worst_rank: str | None = None
    tokens_held: float | None = None  # KV tokens in use, over all ranks
    hit_rate: float | None = None
    tokens_per_s: float | None = None  # prefill: prompt tokens computed; decode: tokens generated
    prompt_tokens_per_s: float | None = None
    generated_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    fwd_occupancy: float | None = None  # percent, as exported
    spec_accept_rate: float | None = None
    gen_throughput: float | None = None  # the gauge, which sticks; kept for the raw view only
    ttft: Latency | None = None
    tpot: Latency | None = None
    queue_time: Latency | None = None
    stages: Mapping[str, Distribution] = field(default_factory=dict)  # per_stage latency, seconds
    kv_transfer_ms: Distribution | None = None
    share: float | None = None  # of its pool's dispatches in the window (router's count, else own)
    transfer_failures: float | None = None  # in the window
    transfer_failures_per_s: float | None = None
    transfer_still_s: float | None = None  # so long the same number has waited in the transfer queue
    transfer_still_reads: int = 0  # in so many reads, with nothing started between them
    window_s: float | None = None  # real length of the window of its rates; None: no rates
    load_score: float | None = None  # running, backlog and KV use by the weights of [load]; None: not known
    resets: int = 0  # restarts seen in the window
    finished: float | None = None  # requests since it started, health checks not counted; look at its growth
    ranks: tuple[Rank, ...] = ()
    ranks_expected: int | None = None
    opinions: tuple[RouterOpinion, ...] = ()
    weight: float = 1.0
    identity: Identity = field(default_factory=Identity)
    page: PageFacts | None = None
    reachable: bool | None = None  # as damped as a router's probes: some failures in a row until False
    flaky: bool = False  # misses reads again and again
    recent_reads: int = 0  # that are remembered to tell it by
    recent_failures: int = 0  # of them
    missed_polls: int = 0  # reads of the metrics page without numbers since the last good one
    status: int | None = None  # HTTP status of the newest read
    trends: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Newest last, one point per tick, None = gap.

    Keys: ttft, tpot, queue_time, tokens, running, backlog, kv.
    """

    @property
    def ranks_used(self) -> tuple[str, ...]:
        """DP ranks whose report could be used."""
        return tuple(r.dp_rank for r in self.ranks if r.running is not None or r.backlog.total is not None)

    @property
    def incomplete(self) -> bool:
        """Whether its sums leave a rank out, and so are lower bounds."""
        return self.ranks_expected is not None and 0 < len(self.ranks_used) < self.ranks_expected


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool, merged: buckets and counters are added before quantiles and rates are taken."""

    role: Role
    total: int
    usable: int
    usable_unknown: int = 0
    draining: int = 0
    running: float | None = None
    running_unknown: int = 0  # workers whose running is not in the sum
    backlog: Backlog = field(default_factory=lambda: Backlog(None))
    inflight: float | None = None
    kv_use: float | None = None  # mean over workers that report it
    kv_use_worst: float | None = None
    hit_rate: float | None = None
    tokens_per_s: float | None = None
    requests_per_s: float | None = None
    ttft: Latency | None = None
    tpot: Latency | None = None
    queue_time: Latency | None = None
    fwd_occupancy_mean: float | None = None
    spec_accept_rate_mean: float | None = None
    gen_throughput_sum: float | None = None  # of the gauge, which sticks; for the raw view only
    policy: str = ""  # from config.toml or the router
    trends: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Router:
    """One router replica in a snapshot."""

    name: str
    url: str
    engine: str  # "sglang-router", "smg", "sgl-router", "vllm-router", "pdtop", "unknown"
    version: str | None = None
    state: State | None = None
    reason: str = ""
    fix: str = ""
    ready: bool | None = None
    ready_reason: str = ""
    alive: bool | None = None  # its health route answers 200; None: not asked
    metrics_state: State | None = None
    metrics_url: str | None = None
    control: bool = False  # an admin API that pdtop could use was found
    age_s: float | None = None
    list_stale: bool = False
    workers: int | None = None  # entries in its worker list; None: the list is not known
    loads_unknown: bool = False  # it gives no load for any of its workers
    engine_series: int | None = None  # engine series on its aggregate page; None: not such a page
    requests: float | None = None  # dispatches in the window, all workers
    requests_per_s: float | None = None
    errors_per_s: float | None = None
    retries_per_s: float | None = None
    inflight: float | None = None
    max_over_mean: float | None = None  # largest worker's dispatches over the mean
    active_workers: int | None = None
    load_sum: float | None = None
    duration: Latency | None = None
    ttft: Latency | None = None
    prefill_duration: Latency | None = None
    known_limits: tuple[str, ...] = ()  # what this release is known to report wrongly, in words


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong, named. ``kind`` is a stable word for scripts; the texts are for people."""

    severity: Severity
    kind: str
    text: str
    worker: str | None = None  # key
    pool: Role | None = None
    router: str | None = None
    evidence: str = ""
    fix: str = ""
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference between config.toml, a router and a worker. ``kind`` is a stable word for scripts:

    not_in_router, not_in_config, role, bootstrap_port, drain, weight, model, version, key, health.
    """

    worker: str
    kind: str
    text: str
    router: str | None = None
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Share of requests within the SLO in the window, from config's ``[slo]``."""

    ttft_target_s: float | None
    tpot_target_s: float | None
    ttft_share: float | None
    tpot_share: float | None

    @property
    def worst(self) -> float | None:
        shares = [s for s in (self.ttft_share, self.tpot_share) if s is not None]
        return min(shares) if shares else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All readings of one round plus what was derived from them; frozen, numbered."""

    number: int
    cluster: str
    at: float  # wall clock, epoch seconds
    window_s: float
    interval_s: float  # of polling the metrics pages
    tick_s: float = 1.0  # between two snapshots, and so between two points of a trend
    routers: tuple[Router, ...] = ()
    prefill: Pool = field(default_factory=lambda: Pool(Role.PREFILL, 0, 0))
    decode: Pool = field(default_factory=lambda: Pool(Role.DECODE, 0, 0))
    workers: tuple[Worker, ...] = ()
    ttft: Latency | None = None  # headline: router's PD TTFT if it has one, else decode's
    ttft_prefill_part: Latency | None = None
    ttft_decode_part: Latency | None = None
    tpot: Latency | None = None
    goodput: Goodput | None = None
    findings: tuple[Finding, ...] = ()
    drift: tuple[Drift, ...] = ()  # config.toml, routers and workers against each other
    read_only: bool = True
    config_error: str = ""  # red line: config.toml is broken, the last good one is in force
    notices: tuple[str, ...] = ()

    def worker(self, key: str) -> Worker | None:
        return next((w for w in self.workers if w.key == key), None)

    def pool_workers(self, role: Role) -> tuple[Worker, ...]:
        return tuple(w for w in self.workers if w.role is role)
