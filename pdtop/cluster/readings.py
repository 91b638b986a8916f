"""What one request to a worker or router gave, as frozen values; a failure is a value too.

The poller makes readings (through :mod:`pdtop.cluster.interpret` and :mod:`pdtop.routers`), the watches keep
them, the snapshot is assembled from them. ``at`` is always the poller's monotonic clock in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdtop.cluster.model import Breaker, Health, Identity, Role, State

if TYPE_CHECKING:
    from pdtop.metrics.router_page import RouterNumbers
    from pdtop.metrics.worker_page import WorkerNumbers


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP exchange. ``failure`` is set when no usable answer came (then ``status`` may be None)."""

    at: float
    seconds: float
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""
    truncated: bool = False  # the connection ended before the announced length
    failure: State | None = None  # timeout, refused, tls, redirect, partial
    detail: str = ""  # the failure in words, without secrets


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """``/metrics`` of a worker. ``numbers`` is None unless the page could be read."""

    at: float
    state: State
    status: int | None = None
    reason: str = ""
    fix: str = ""
    numbers: WorkerNumbers | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadRank:
    """One entry of ``/v1/loads``; names as in the answer, None = not in this release."""

    dp_rank: str
    timestamp: float | None
    running: float | None
    waiting: float | None
    queue: float | None = None
    bootstrap: float | None = None
    inflight: float | None = None
    prealloc: float | None = None
    transfer: float | None = None
    retracted: float | None = None
    used_tokens: float | None = None
    capacity_tokens: float | None = None
    max_running: float | None = None
    token_usage: float | None = None
    gen_throughput: float | None = None
    cache_hit_rate: float | None = None

    @property
    def reported(self) -> bool:
        """False if the rank has never reported (timestamp 0 with all zeros)."""
        return self.timestamp is None or self.timestamp > 0


@dataclass(frozen=True, slots=True)
class Loads:
    """The whole ``/v1/loads`` answer. ``timestamp`` is the worker's own clock (epoch seconds)."""

    timestamp: float | None
    version: str | None
    role: Role
    ranks: tuple[LoadRank, ...]


@dataclass(frozen=True, slots=True)
class LoadsReading:
    at: float
    state: State
    status: int | None = None
    reason: str = ""
    loads: Loads | None = None
    supported: bool = True  # False: this release has no such route (404)


@dataclass(frozen=True, slots=True)
class HealthReading:
    """``/ready`` where it exists, else ``/health``. ``ready`` None: not known."""

    at: float
    endpoint: str
    ready: bool | None
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class InfoReading:
    at: float
    state: State
    role: Role = Role.UNKNOWN
    identity: Identity = field(default_factory=Identity)
    reason: str = ""
    fingerprint: str = ""  # equal for one process under two names; "" if the release does not tell


@dataclass(frozen=True, slots=True)
class ListedWorker:
    """One entry of a router's worker list, as the router gives it; ``-1`` has become None."""

    worker_id: str
    url: str
    role: Role
    health: Health | None = None
    load: float | None = None
    bootstrap_port: int | None = None
    model: str | None = None
    breaker: Breaker | None = None
    weight: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouterReading:
    """The router's main port: worker list and readiness. ``workers`` None: the list could not be read."""

    at: float
    state: State
    status: int | None = None
    reason: str = ""
    fix: str = ""
    engine: str = "unknown"
    version: str | None = None
    workers: tuple[ListedWorker, ...] | None = None
    loads: Mapping[str, float | None] | None = None  # url -> load, from /get_loads
    ready: bool | None = None
    ready_reason: str = ""
    alive: bool | None = None  # its health route answers 200; None: not asked
    control: bool = False


@dataclass(frozen=True, slots=True)
class RouterMetricsReading:
    """The router's metrics port (or its aggregate of the workers' metrics)."""

    at: float
    state: State
    status: int | None = None
    reason: str = ""
    fix: str = ""
    numbers: RouterNumbers | None = None
    worker_pages: Mapping[str, WorkerNumbers] | None = None  # an aggregate page, by worker_addr
