"""One watched worker over time: takes readings, tells on demand how the worker is now. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pdtop.cluster.derive import Derived, derive, role_of_page
from pdtop.cluster.heartbeat import Frozen, Heartbeat, lagging
from pdtop.cluster.model import (
    READABLE,
    Breaker,
    Health,
    Identity,
    PageFacts,
    Rank,
    Role,
    RouterOpinion,
    State,
    Worker,
)
from pdtop.cluster.period import Period, Span
from pdtop.cluster.queues import NOTHING, Queues, complete, completed, from_loads, from_page
from pdtop.cluster.readings import HealthReading, InfoReading, LoadsReading, MetricsReading
from pdtop.cluster.trends import GAP, Points, Trends, middle
from pdtop.config.schema import LoadWeights
from pdtop.insight.load import Work, load_score
from pdtop.insight.reachability import Reachability
from pdtop.insight.standstill import Standstill
from pdtop.metrics import catalogue
from pdtop.metrics.timeline import Timeline
from pdtop.metrics.worker_page import WorkerNumbers

#: Reads kept within a window: more would only cost memory (about 4 KB each on a busy worker).
WINDOW_POINTS = 10
#: What needs a window is renewed after this part of the window.
RENEWED_AFTER = 1 / 20
#: Numbers are old after this, or after three reads that should have come.
STALE_AFTER_S = 10.0
#: ``/v1/loads`` is taken for the queues while its newest answer is no older than this (same rule).
LOADS_FRESH_S = 5.0
HEALTH_FRESH_S = 30.0
DEFAULT_WEIGHTS = LoadWeights()
_UNREACHABLE = (State.REFUSED, State.TIMEOUT, State.TLS)


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a worker from elsewhere. ``ranks``: the DP ranks that addresses named."""

    key: str
    name: str
    role: Role = Role.UNKNOWN
    weight: float = 1.0
    draining: bool = False
    ranks: tuple[str, ...] = ()


class WorkerWatch:
    """Feed it readings in the order of their time; ask :meth:`view`.

    ``span_s``: the longest window that will be asked for. ``stale_after_s``: numbers older than this are
    marked although no read has failed. ``loads_fresh_s``: so long ``/v1/loads`` is taken for the queues.
    """

    def __init__(
        self,
        about: About,
        *,
        span_s: float = 60.0,
        tick_s: float = 1.0,
        stale_after_s: float = STALE_AFTER_S,
        loads_fresh_s: float = LOADS_FRESH_S,
        points: int = WINDOW_POINTS,
        weights: LoadWeights = DEFAULT_WEIGHTS,
    ) -> None:
        self.about = about
        self.weights = weights
        self.stale_after_s = stale_after_s
        self.loads_fresh_s = loads_fresh_s
        self._timeline: Timeline[WorkerNumbers] = Timeline(span_s, points=points)
        self._heartbeat = Heartbeat()
        self._metrics: MetricsReading | None = None
        self._loads: LoadsReading | None = None
        self._good_loads: LoadsReading | None = None
        self._health: HealthReading | None = None
        self._info: InfoReading | None = None
        self._lag: Frozen | None = None
        self.reachability = Reachability()
        self._transfer = Standstill()
        self._missed = 0
        self._derived: tuple[float, WorkerNumbers, Span, Role, Derived] | None = None
        self._gauges: tuple[WorkerNumbers, Role, Queues] | None = None
        self._queues: tuple[LoadsReading, Role, Queues] | None = None
        self._middles: tuple[Derived | None, list[float | None]] | None = None
        self._who: tuple[tuple[object, ...], Identity] | None = None
        self._trends = Trends(tick_s)

    def observe_metrics(self, reading: MetricsReading) -> bool:
        """True if the worker restarted since the read before."""
        self.reachability.note(reading.state not in _UNREACHABLE or self._answers_elsewhere())
        self._metrics = reading
        if reading.numbers is None:
            self._missed += 1
            return False
        self._missed = 0
        restarted = self._timeline.append(reading.numbers)
        if restarted:
            self._derived = None
        self._heartbeat.beat(reading.at, reading.numbers.counter(catalogue.SCHEDULER_CPU))
        if self.role is Role.DECODE and self._told_transfer() is None:
            self._transfer.note(reading.at, reading.numbers.gauge(catalogue.TRANSFER), self._started())
        return restarted

    def observe_loads(self, reading: LoadsReading) -> None:
        self._loads = reading
        if reading.loads is not None:
            self._good_loads = reading
            self._lag = lagging(reading.loads, reading.at)
            waiting = self._told_transfer()
            if waiting is not None:
                self._transfer.note(reading.at, waiting, self._started() if waiting else None)

    def observe_health(self, reading: HealthReading) -> None:
        self._health = reading

    def observe_info(self, reading: InfoReading) -> None:
        """A failed reading does not wipe out who the worker said it was."""
        if reading.state in READABLE or self._info is None:
            self._info = reading

    @property
    def asked(self) -> bool:
        """Whether it was asked for everything at least once, however that ended."""
        return None not in (self._metrics, self._loads, self._health, self._info)

    @property
    def missed_polls(self) -> int:
        """Reads of the metrics page without numbers since the last good one."""
        return self._missed

    @property
    def numbers(self) -> WorkerNumbers | None:
        """The newest good page."""
        return self._timeline.newest

    @property
    def role(self) -> Role:
        """As given; else what the worker says, else what its page's labels say."""
        if self.about.role is not Role.UNKNOWN:
            return self.about.role
        if self._info is not None and self._info.role is not Role.UNKNOWN:
            return self._info.role
        loads = self._good_loads.loads if self._good_loads is not None else None
        if loads is not None and loads.role is not Role.UNKNOWN:
            return loads.role
        newest = self._timeline.newest
        return role_of_page(newest) if newest is not None else Role.UNKNOWN

    def period(self, span: Span) -> Period[WorkerNumbers] | None:
        """The worker's page over a span, for values outside :class:`Derived`."""
        return Period.of(self._timeline, span)

    def derived(self, span: Span) -> Derived | None:
        """Everything that needs a window; None before the first page.

        Over the last seconds it is renewed some times a window, not with every page: it would hardly differ,
        and takes most of the time that a snapshot takes.
        """
        newest, role = self._timeline.newest, self.role
        if newest is None:
            return None
        if self._derived is not None:
            at, page, known_span, known_role, derived = self._derived
            same = known_span == span and known_role is role
            if same and (page is newest or _still_good(derived, span, newest.at - at)):
                return derived
        period = Period.of(self._timeline, span)
        if period is None:
            return None
        derived = derive(period, role)
        self._derived = (newest.at, newest, span, role, derived)
        return derived

    def view(
        self,
        now: float,
        span: Span,
        opinions: Sequence[RouterOpinion] = (),
        *,
        share: float | None = None,
        tick: bool = False,
    ) -> Worker:
        """The worker at ``now`` (the poller's clock), rates and latencies over ``span``.

        ``share``: of its pool's requests, which only somebody who knows the pool can tell. ``tick`` adds a
        point to its trends.
        """
        derived, queued = self.derived(span), self._fresh_queues(now)
        frozen = self._frozen()
        state = self._state(frozen)
        page_at = self._timeline.newest.at if self._timeline.newest is not None else None
        page_good = self._metrics is not None and self._metrics.numbers is not None
        if queued is not None and not page_good:
            derived = None  # the page's numbers are of another time than the fresh queues
        at, failed = page_at, page_at is not None and not page_good
        if self._good_loads is not None and (queued is not None or page_at is None):
            at = self._good_loads.at
            failed = self._loads is not self._good_loads or now - at > self.loads_fresh_s
            queued = queued or self._queues_of(self._good_loads)
        age = _age(now, frozen.since if frozen is not None else at)
        stale = frozen is not None or failed or (age is not None and age > self.stale_after_s)
        usable, because = self._usable(now, state, opinions)
        source = "/v1/loads" if queued is not None else "/metrics" if page_at is not None else ""
        numbers = self._numbers(queued, page_good)
        hit_rate = numbers.hit_rate
        if derived is not None and derived.lookup_tokens is not None:
            hit_rate = derived.hit_rate
        metrics = self._metrics
        if tick:
            self._trends.add(GAP if stale else self._points(derived, numbers))
        return Worker(
            key=self.about.key,
            name=self.about.name,
            role=self.role,
            state=state,
            reason=frozen.reason if frozen is not None else (metrics.reason if metrics is not None else ""),
            fix=metrics.fix if metrics is not None and frozen is None else "",
            usable=usable,
            unusable_because=because,
            draining=self._draining(opinions),
            age_s=age,
            stale=stale,
            source=source,
            running=numbers.running,
            backlog=numbers.backlog,
            inflight=numbers.inflight,
            retracted=numbers.retracted,
            kv_use=numbers.kv_use,
            kv_use_worst=numbers.kv_use_worst,
            kv_worst_rank=numbers.kv_worst_rank,
            tokens_held=numbers.kv_used_tokens,
            hit_rate=hit_rate,
            tokens_per_s=derived.tokens_per_s if derived else None,
            prompt_tokens_per_s=derived.prompt_tokens_per_s if derived else None,
            generated_tokens_per_s=derived.generated_tokens_per_s if derived else None,
            requests_per_s=derived.requests_per_s if derived else None,
            fwd_occupancy=derived.fwd_occupancy if derived else None,
            spec_accept_rate=derived.spec_accept_rate if derived else None,
            gen_throughput=derived.gen_throughput if derived else None,
            ttft=derived.ttft if derived else None,
            tpot=derived.tpot if derived else None,
            queue_time=derived.queue_time if derived else None,
            stages=derived.stages if derived else {},
            kv_transfer_ms=derived.kv_transfer_ms if derived else None,
            transfer_failures=derived.transfer_failures if derived else None,
            transfer_failures_per_s=derived.transfer_failures_per_s if derived else None,
            transfer_still_s=_age(now, self._transfer.since),
            transfer_still_reads=self._transfer.reads,
            window_s=derived.seconds if derived else None,
            load_score=load_score(
                Work(numbers.running, numbers.backlog.total, None, numbers.kv_use), self.weights
            ),
            share=share,
            resets=derived.resets if derived else 0,
            finished=self._finished(page_good),
            ranks=_with_rates(numbers.ranks, derived),
            ranks_expected=self._ranks_expected(queued),
            opinions=tuple(opinions),
            weight=self.about.weight,
            identity=self._identity(numbers.kv_capacity_tokens),
            page=self._page(),
            reachable=self.reachability.up,
            flaky=self.reachability.flaky,
            recent_reads=self.reachability.seen,
            recent_failures=self.reachability.failed,
            missed_polls=self._missed,
            status=metrics.status if metrics is not None else None,
            trends=self._trends.recent(),
        )

    def _told_transfer(self) -> float | None:
        """What waits for its KV by ``/v1/loads``, while that answers."""
        reading = self._loads
        queues = self._queues_of(reading) if reading is not None and self.role is Role.DECODE else None
        return queues.backlog.parts.get(catalogue.TRANSFER) if queues is not None else None

    def _started(self) -> float | None:
        """First tokens since the worker's start."""
        newest = self._timeline.newest
        first = newest.histogram(catalogue.TTFT) if newest is not None else None
        return first.count if first is not None else None

    def _points(self, page: Derived | None, numbers: Queues) -> Points:
        if self._middles is None or self._middles[0] is not page:
            latencies = (page.ttft, page.tpot, page.queue_time) if page is not None else ()
            self._middles = (page, [middle(latency) for latency in latencies] or [None] * 3)
        ttft, tpot, queue_time = self._middles[1]
        return {
            "ttft": ttft,
            "tpot": tpot,
            "queue_time": queue_time,
            "tokens": page.tokens_per_s if page is not None else None,
            "running": numbers.running,
            "backlog": numbers.backlog.total,
            "kv": numbers.kv_use_worst,
        }

    def history(self) -> dict[str, tuple[float | None, ...]]:
        """All kept points of every trend; may be asked from another thread."""
        return self._trends.history()

    def _numbers(self, loads: Queues | None, page_good: bool) -> Queues:
        """Out of ``/v1/loads`` with what only the page knows; without loads out of the page alone.

        A page that is not of now can add nothing to fresh loads.
        """
        newest, role = self._timeline.newest, self.role
        if newest is None or (loads is not None and not page_good):
            return loads if loads is not None else NOTHING
        if loads is not None and complete(loads, role):
            return loads
        if self._gauges is None or self._gauges[0] is not newest or self._gauges[1] is not role:
            self._gauges = (newest, role, from_page(newest, role))
        page = self._gauges[2]
        return page if loads is None else completed(loads, page, role)

    def _finished(self, page_good: bool) -> float | None:
        newest = self._timeline.newest
        return newest.counter(catalogue.REQUESTS) if newest is not None and page_good else None

    def _fresh_queues(self, now: float) -> Queues | None:
        """Out of ``/v1/loads`` if its newest answer is good and young; it is then fresher than any gauge."""
        reading = self._loads
        if reading is None or reading.loads is None or now - reading.at > self.loads_fresh_s:
            return None
        if not any(rank.reported for rank in reading.loads.ranks):
            return None
        return self._queues_of(reading)

    def _queues_of(self, reading: LoadsReading) -> Queues | None:
        if reading.loads is None:
            return None
        role = self.role
        if self._queues is None or self._queues[0] is not reading or self._queues[1] is not role:
            self._queues = (reading, role, from_loads(reading.loads, role))
        return self._queues[2]

    def _frozen(self) -> Frozen | None:
        """Loads go first: a rank that just reported there lives, whatever the page's counter says."""
        loads, metrics = self._loads, self._metrics
        if metrics is not None and metrics.state in _UNREACHABLE:
            return None
        if loads is not None and loads.loads is not None and loads.loads.timestamp is not None:
            return self._lag
        return self._heartbeat.frozen if metrics is not None and metrics.numbers is not None else None

    def _state(self, frozen: Frozen | None) -> State | None:
        if frozen is not None:
            return State.FROZEN
        return self._metrics.state if self._metrics is not None else None

    def _usable(
        self, now: float, state: State | None, opinions: Sequence[RouterOpinion]
    ) -> tuple[bool | None, str]:
        """Ready, circuit closed, answering, not draining; with several routers one that sends is enough."""
        if self._draining(opinions):
            return False, "draining"
        health = self._health
        if health is not None and now - health.at > HEALTH_FRESH_S:
            health = None
        ready = health.ready if health is not None else None
        if state is State.FROZEN:
            return False, "frozen"
        if self.reachability.up is False:
            if state not in _UNREACHABLE:
                return False, "has only just answered again"
            if not self._answered_since(health):
                return False, "does not answer"
        if ready is False:
            return False, f"not ready: {health.reason}" if health and health.reason else "not ready"
        if health is not None and health.state is State.TIMEOUT:
            return False, f"{health.endpoint} does not answer"
        if opinions:
            refusals = [_refusal(opinion) for opinion in opinions]
            if all(refusals):
                return False, refusals[0]
            if any(o.listed and o.health is Health.HEALTHY for o in opinions):
                return True, ""
        if ready is True:
            return True, ""
        return None, ""

    def _answers_elsewhere(self) -> bool:
        """Whether another endpoint has answered since the metrics page was last read."""
        since = self._metrics.at if self._metrics is not None else float("-inf")
        health, loads = self._health, self._good_loads
        return (health is not None and health.ready is True and health.at > since) or (
            loads is not None and loads.at > since
        )

    def _answered_since(self, health: HealthReading | None) -> bool:
        """Whether another endpoint has answered although the metrics page could not be reached."""
        if health is not None and health.ready is True:
            slow = self._metrics is not None and self._metrics.state is State.TIMEOUT
            return slow or (self._metrics is not None and health.at >= self._metrics.at)
        loads, metrics = self._loads, self._metrics
        return loads is not None and metrics is not None and loads.loads is not None and loads.at > metrics.at

    def _draining(self, opinions: Sequence[RouterOpinion]) -> bool:
        told = [opinion for opinion in opinions if opinion.listed]
        return self.about.draining or (bool(told) and all(o.health is Health.DRAINING for o in told))

    def _identity(self, capacity: float | None) -> Identity:
        identity = self._info.identity if self._info is not None else Identity()
        loads = self._good_loads.loads if self._good_loads is not None else None
        newest = self._timeline.newest
        version = loads.version if loads is not None else None
        model = newest.model_name if newest is not None else None
        role = self._own_role()
        key = (identity, role, version, model, capacity)
        if self._who is None or self._who[0] != key:
            self._who = (
                key,
                replace(
                    identity,
                    role=role,
                    version=identity.version or version,
                    model=identity.model or model or None,
                    kv_capacity_tokens=int(capacity) if capacity is not None else identity.kv_capacity_tokens,
                ),
            )
        return self._who[1]

    def _own_role(self) -> Role:
        """As the worker says it now: a role can be switched while it runs, and its page's labels stay."""
        told: list[tuple[float, Role]] = []
        if self._info is not None:
            told.append((self._info.at, self._info.role))
        if self._good_loads is not None and self._good_loads.loads is not None:
            told.append((self._good_loads.at, self._good_loads.loads.role))
        known = [(at, role) for at, role in told if role is not Role.UNKNOWN]
        if known:
            return max(known, key=lambda one: one[0])[1]
        newest = self._timeline.newest
        return role_of_page(newest) if newest is not None else Role.UNKNOWN

    def _ranks_expected(self, queued: Queues | None) -> int | None:
        sizes = [self._info.identity.dp_size if self._info is not None else None]
        sizes += [len(self.about.ranks) or None, len(queued.ranks) if queued is not None else None]
        return max((size for size in sizes if size is not None), default=None)

    def _page(self) -> PageFacts | None:
        newest = self._timeline.newest
        return PageFacts(newest.lines, newest.bad_lines, newest.duplicates, newest.size) if newest else None


def _still_good(derived: Derived, span: Span, seconds: float) -> bool:
    """Whether what was derived so long ago may stand: only of a window that was full then."""
    if not isinstance(span, float) or derived.seconds is None:
        return False
    return derived.seconds >= 0.9 * span and seconds < RENEWED_AFTER * span


def _refusal(opinion: RouterOpinion) -> str:
    """Why this router sends nothing to the worker; empty if it may."""
    if not opinion.listed:
        return "not in the router's list"
    if opinion.health in (Health.UNHEALTHY, Health.PENDING, Health.DRAINING):
        return f"{opinion.health} in the router"
    if opinion.breaker is Breaker.OPEN:
        return "circuit open in the router"
    return "circuit half-open in the router" if opinion.breaker is Breaker.HALF_OPEN else ""


def _with_rates(ranks: tuple[Rank, ...], derived: Derived | None) -> tuple[Rank, ...]:
    """The ranks with the tokens per second of each."""
    if derived is None:
        return ranks
    if len(ranks) == 1:
        return (replace(ranks[0], tokens_per_s=derived.tokens_per_s),)
    rates = derived.rank_tokens_per_s
    return tuple(replace(rank, tokens_per_s=rates.get(rank.dp_rank)) for rank in ranks)


def _age(now: float, at: float | None) -> float | None:
    return max(0.0, now - at) if at is not None else None
