"""One watched router over time: its word on every worker, its own counts and latencies. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from pdtop.cluster.address import Address
from pdtop.cluster.model import Breaker, Health, Latency, Role, Router, RouterOpinion
from pdtop.cluster.period import Period, Span
from pdtop.cluster.readings import ListedWorker, RouterMetricsReading, RouterReading
from pdtop.cluster.targets import listed_address
from pdtop.metrics import catalogue as c
from pdtop.metrics.router_page import RouterNumbers, RouterWorker, Summary
from pdtop.metrics.timeline import Timeline
from pdtop.routers import detect

_BREAKERS = {0: Breaker.CLOSED, 1: Breaker.OPEN, 2: Breaker.HALF_OPEN}
_BREAKER_RANK = {Breaker.CLOSED: 0, Breaker.HALF_OPEN: 1, Breaker.OPEN: 2}
_HEALTH_RANK = {Health.HEALTHY: 0, Health.PENDING: 1, Health.DRAINING: 2, Health.UNHEALTHY: 3}
_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}
WINDOW_POINTS = 16


@dataclass(frozen=True, slots=True)
class RouterView:
    """A router and what it says, by canonical worker key. ``listed`` is None if its list is not known."""

    router: Router
    opinions: Mapping[str, RouterOpinion]
    names: Mapping[str, str]  # as the router writes them
    roles: Mapping[str, Role]
    listed: frozenset[str] | None
    policies: Mapping[Role, str]  # by which it has chosen workers of the pool, as far as its page tells


@dataclass(slots=True)
class _Said:
    """What a router says of one worker, all its entries and ranks together."""

    name: str
    role: Role = Role.UNKNOWN
    ids: tuple[str, ...] = ()
    health: Health | None = None
    breaker: Breaker | None = None
    inflight: float | None = None
    load: float | None = None
    weight: float | None = None
    listed_role: Role | None = None
    bootstrap_port: int | None = None
    model: str | None = None
    requests: float | None = None
    outcomes: float | None = None
    failures: float | None = None


@dataclass(slots=True)
class _Since:
    breaker: Breaker
    at: float


@dataclass(frozen=True, slots=True)
class _Page:
    """The newest page by worker; ``growth`` over the span, None without one."""

    newest: tuple[RouterWorker, ...] = ()
    growth: Mapping[str, RouterWorker] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """What a router said last: the reading that had its worker list, and its metrics page."""

    list: RouterReading | None = None
    numbers: RouterNumbers | None = None


class RouterWatch:
    """Feed it readings in the order of their time; ask :meth:`view`.

    ``address``: as it was reached; loopback names in its list are taken relative to it. What it said of its
    workers counts for ``stale_after_s`` after its last good answer.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str = "",
        address: Address | None = None,
        span_s: float = 60.0,
        stale_after_s: float = 10.0,
    ) -> None:
        self.name = name
        self.url = url
        self.metrics_url: str | None = None
        self.stale_after_s = stale_after_s
        self._address = address
        self._timeline: Timeline[RouterNumbers] = Timeline(span_s, points=WINDOW_POINTS)
        self._main: RouterReading | None = None
        self._list: RouterReading | None = None  # the newest that had a worker list
        self._metrics: RouterMetricsReading | None = None
        self._engine_series: int | None = None
        self._breakers: dict[str, _Since] = {}
        self._page: tuple[RouterNumbers, Span, _Page] | None = None

    def observe_router(self, reading: RouterReading) -> None:
        self._main = reading
        if reading.workers is not None:
            self._list = reading
            self._note_breakers(
                reading.at, {self._key(w.url): w.breaker for w in reading.workers if w.breaker is not None}
            )

    def observe_metrics(self, reading: RouterMetricsReading) -> None:
        self._metrics = reading
        if reading.worker_pages is not None:
            self._engine_series = sum(page.engine_series for page in reading.worker_pages.values())
        if reading.numbers is None:
            return
        self._timeline.append(reading.numbers)
        states = reading.numbers.each_worker()
        self._note_breakers(
            reading.at,
            {self._key(w.worker): _BREAKERS[w.breaker] for w in states if w.breaker is not None},
        )

    def view(self, now: float, span: Span, roles: Mapping[str, Role] | None = None) -> RouterView:
        """The router at ``now``; ``roles`` are those of the watched workers, by key."""
        said = self._said(now, span)
        known = {key: one.role for key, one in said.items()} | dict(roles or {})
        listed = self._listed(now)
        pools = _pool_sums(said, known)
        opinions = {
            key: self._opinion(key, one, now, pools.get(known[key], 0.0)) for key, one in said.items()
        }
        if listed is not None:
            for key in known:
                if key not in opinions:
                    opinions[key] = RouterOpinion(self.name, listed=False)
        return RouterView(
            self._router(now, span, said, known),
            opinions,
            {key: one.name for key, one in said.items()},
            {key: one.role for key, one in said.items() if one.role is not Role.UNKNOWN},
            listed,
            self._policies(),
        )

    @property
    def heard(self) -> Heard:
        """The newest worker list and numbers, however old."""
        return Heard(self._list, self._timeline.newest)

    @property
    def asked(self) -> bool:
        """Whether its main port and its metrics were read at least once, however that ended."""
        return self._main is not None and self._metrics is not None

    def _policies(self) -> dict[Role, str]:
        newest = self._timeline.newest
        counts: dict[Role, dict[str, float]] = {}
        for (pool, policy), count in (newest.selections() if newest is not None else {}).items():
            if policy and pool in _ROLES:
                counts.setdefault(_ROLES[pool], {})[policy] = count
        return {role: max(used, key=lambda policy: used[policy]) for role, used in counts.items()}

    def _note_breakers(self, at: float, states: Mapping[str, Breaker]) -> None:
        for key, breaker in states.items():
            before = self._breakers.get(key)
            if before is None or before.breaker is not breaker:
                self._breakers[key] = _Since(breaker, at)

    def _key(self, url: str) -> str:
        return key_of(url, self._address)

    def _good_list(self, now: float) -> RouterReading | None:
        """The worker list while it is young enough to be believed."""
        reading = self._list
        return reading if reading is not None and now - reading.at <= self.stale_after_s else None

    def _listed(self, now: float) -> frozenset[str] | None:
        reading = self._good_list(now)
        if reading is None or reading.workers is None:
            return None
        return frozenset(self._key(worker.url) for worker in reading.workers)

    def _said(self, now: float, span: Span) -> dict[str, _Said]:
        """By worker key: the list's entries, then the page's series of those that are on the list."""
        said: dict[str, _Said] = {}
        reading = self._good_list(now)
        if reading is not None:
            for entry in reading.workers or ():
                key = self._key(entry.url)
                _add_entry(said.setdefault(key, _Said(_bare(entry.url))), entry)
            for url, load in (reading.loads or {}).items():
                known = said.get(self._key(url))
                if known is not None:
                    known.load = load
        page = self._by_worker(span)
        fresh = self._metrics is not None and now - self._metrics.at <= self.stale_after_s
        for worker in page.newest if fresh else ():
            key = self._key(worker.worker)
            if reading is not None and key not in said:
                continue  # let go by the router; sglang-router 0.3.2 keeps its series for ever
            if reading is None and worker.removed:
                continue
            one = said.setdefault(key, _Said(_bare(worker.worker)))
            _add_page(one, worker, page.growth.get(worker.worker))
        return said

    def _by_worker(self, span: Span) -> _Page:
        newest = self._timeline.newest
        if newest is None:
            return _Page()
        if self._page is not None and self._page[0] is newest and self._page[1] == span:
            return self._page[2]
        period = Period.of(self._timeline, span)
        growth = _growth(period)
        page = _Page(
            newest.each_worker(),
            {w.worker: w for w in growth.each_worker()} if growth is not None else {},
            period.seconds if period is not None else None,
        )
        self._page = (newest, span, page)
        return page

    def _opinion(self, key: str, said: _Said, now: float, pool_requests: float) -> RouterOpinion:
        page = self._page[2] if self._page is not None else _Page()
        breaker, since = said.breaker, self._breakers.get(key)
        lasting = since is not None and breaker is not None and since.breaker is breaker
        return RouterOpinion(
            router=self.name,
            worker_ids=said.ids,
            health=said.health,
            breaker=breaker,
            breaker_since_s=max(0.0, now - since.at) if lasting and since is not None else None,
            inflight=said.inflight,
            load=said.load,
            requests=said.requests,
            requests_per_s=said.requests / page.seconds
            if said.requests is not None and page.seconds
            else None,
            share=said.requests / pool_requests if said.requests is not None and pool_requests else None,
            failure_rate=said.failures / said.outcomes
            if said.failures is not None and said.outcomes
            else None,
            weight=said.weight,
            role=said.listed_role,
            bootstrap_port=said.bootstrap_port,
            model=said.model,
        )

    def _router(self, now: float, span: Span, said: Mapping[str, _Said], roles: Mapping[str, Role]) -> Router:
        main, metrics = self._main, self._metrics
        first = main if main is not None else metrics
        engine = self._engine()
        good = self._list.at if self._list is not None else None
        page_at = self._timeline.newest.at if self._timeline.newest is not None else None
        at = good if main is not None else page_at
        newest = self._timeline.newest if page_at is None or now - page_at <= self.stale_after_s else None
        period = Period.of(self._timeline, span) if newest is not None else None
        growth = _growth(period)
        seconds = period.seconds if period is not None else None
        counts = [one.requests for one in said.values() if one.requests is not None]
        loads = [one.load for one in said.values() if one.load is not None]
        told = main.loads if main is not None else None
        taken = growth.requests if growth is not None else None

        def rate(increase: float | None) -> float | None:
            return increase / seconds if increase is not None and seconds else None

        return Router(
            name=self.name,
            url=self.url,
            engine=engine,
            version=main.version if main is not None else None,
            state=first.state if first is not None else None,
            reason=first.reason if first is not None else "",
            fix=first.fix if first is not None else "",
            ready=main.ready if main is not None else None,
            ready_reason=main.ready_reason if main is not None else "",
            alive=main.alive if main is not None else None,
            metrics_state=metrics.state if metrics is not None else None,
            metrics_url=self.metrics_url,
            control=main.control if main is not None else False,
            age_s=max(0.0, now - at) if at is not None else None,
            list_stale=main is not None and good is not None and main.workers is None,
            workers=self._workers(),
            loads_unknown=bool(told) and all(load is None for load in (told or {}).values()),
            engine_series=self._engine_series,
            requests=sum(counts) if counts else None,
            requests_per_s=rate(taken if taken is not None else sum(counts) if counts else None),
            errors_per_s=rate(growth.errors) if growth is not None else None,
            retries_per_s=rate(growth.retries) if growth is not None else None,
            inflight=newest.http_inflight if newest is not None else None,
            max_over_mean=_max_over_mean(said, roles),
            active_workers=_whole(newest.active_workers) if newest is not None else None,
            load_sum=sum(loads) if loads else None,
            duration=_latency(period, c.R_DURATION),
            ttft=_latency(period, c.R_PD_TTFT),
            prefill_duration=_latency(period, c.R_PD_PREFILL),
            known_limits=detect.limits_of(engine),
        )

    def _workers(self) -> int | None:
        return len(self._list.workers) if self._list is not None and self._list.workers is not None else None

    def _engine(self) -> str:
        if self._main is not None and self._main.engine != "unknown":
            return self._main.engine
        newest = self._timeline.newest
        known = detect.by_metrics(newest.family, detect.UNKNOWN) if newest is not None else detect.UNKNOWN
        return known.engine


def _growth(period: Period[RouterNumbers] | None) -> RouterNumbers | None:
    if period is None:
        return None
    if period.lifetime:
        return period.newest
    return period.window.growth if period.window is not None else None


@lru_cache(maxsize=4096)
def key_of(url: str, router: Address | None) -> str:
    """Canonical key of a worker as a router writes it."""
    address = listed_address(url, router)
    return address.key if address is not None else _bare(url)


def _bare(url: str) -> str:
    """The router's name for a worker without what must not be shown or is a rank's."""
    address = listed_address(url, None)
    return address.base_url if address is not None else "".join(ch if ch.isprintable() else "?" for ch in url)


def _add_entry(said: _Said, entry: ListedWorker) -> None:
    """One entry of the list; several are the ranks of one worker, and the worst of them counts."""
    said.role = said.role if said.role is not Role.UNKNOWN else entry.role
    said.ids = (*said.ids, entry.worker_id) if entry.worker_id else said.ids
    said.load = _added(said.load, entry.load)
    said.weight = entry.weight if said.weight is None else said.weight
    if said.listed_role is None and entry.role is not Role.UNKNOWN:
        said.listed_role = entry.role
    said.bootstrap_port = entry.bootstrap_port if said.bootstrap_port is None else said.bootstrap_port
    said.model = entry.model if said.model is None else said.model
    if entry.health is not None:
        worst = (said.health, entry.health) if said.health is not None else (entry.health,)
        said.health = max(worst, key=lambda health: _HEALTH_RANK[health])
    said.breaker = _worst_breaker(said.breaker, entry.breaker)


def _add_page(said: _Said, worker: RouterWorker, growth: RouterWorker | None) -> None:
    if said.role is Role.UNKNOWN:
        said.role = _ROLES.get(worker.role, Role.UNKNOWN)
    said.inflight = _added(said.inflight, worker.inflight)
    if said.load is None:
        said.load = worker.load
    if said.health is None and worker.health is not None:
        said.health = Health.HEALTHY if worker.health else Health.UNHEALTHY
    said.breaker = _worst_breaker(
        said.breaker, _BREAKERS.get(-1 if worker.breaker is None else worker.breaker)
    )
    if growth is not None:
        said.requests = _added(said.requests, growth.requests)
        said.outcomes = _added(said.outcomes, growth.outcomes)
        said.failures = _added(said.failures, growth.failures)


def _worst_breaker(one: Breaker | None, other: Breaker | None) -> Breaker | None:
    known = [breaker for breaker in (one, other) if breaker is not None]
    return max(known, key=lambda breaker: _BREAKER_RANK[breaker], default=None)


def _added(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _pool_sums(said: Mapping[str, _Said], roles: Mapping[str, Role]) -> dict[Role, float]:
    sums: dict[Role, float] = {}
    for key, one in said.items():
        if one.requests is not None:
            sums[roles[key]] = sums.get(roles[key], 0.0) + one.requests
    return sums


def _max_over_mean(said: Mapping[str, _Said], roles: Mapping[str, Role]) -> float | None:
    """The busiest worker of the most uneven pool over its pool's mean."""
    pools: dict[Role, list[float]] = {}
    for key, one in said.items():
        if one.requests is not None:
            pools.setdefault(roles[key], []).append(one.requests)
    ratios = [max(counts) * len(counts) / sum(counts) for counts in pools.values() if sum(counts) > 0]
    return max(ratios, default=None)


def _latency(period: Period[RouterNumbers] | None, concept: str) -> Latency | None:
    metric = period.newest.metric(concept) if period is not None else None
    if period is None or metric is None:
        return None
    own, growth = period.newest.summary(concept), _growth(period)
    if own is None:
        return Latency("router", metric, period.distribution(concept))
    grown = growth.summary(concept) if growth is not None else None
    count, total = (grown.count, grown.sum) if grown is not None else (None, None)
    return Latency("router", metric, None, summary=Summary(own.quantiles, count, total))


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None else None
