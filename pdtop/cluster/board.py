"""All that is watched, in one place: takes the poller's readings, gives snapshots. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pdtop.cluster import assemble
from pdtop.cluster.derive import Derived
from pdtop.cluster.desired import Desired, desired
from pdtop.cluster.model import Finding, Pool, Role, RouterOpinion, Snapshot, State, Worker
from pdtop.cluster.period import Span
from pdtop.cluster.readings import (
    HealthReading,
    InfoReading,
    LoadsReading,
    MetricsReading,
    RouterMetricsReading,
    RouterReading,
)
from pdtop.cluster.router_watch import RouterView, RouterWatch, key_of
from pdtop.cluster.targets import RouterTarget, WorkerTarget
from pdtop.cluster.trends import Trends, trend_points
from pdtop.cluster.watch import LOADS_FRESH_S, STALE_AFTER_S, WINDOW_POINTS, About, WorkerWatch
from pdtop.config.schema import Config, Slo
from pdtop.insight.drift import differences
from pdtop.insight.findings import NOTHING, Memory, judge
from pdtop.insight.slo import goodput

POOLS = (Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a snapshot says beside the readings: from the config file and the command line."""

    cluster: str = "cluster"
    config: Config | None = None
    read_only: bool = True
    interval_s: float = 2.0
    config_error: str = ""
    notices: tuple[str, ...] = ()
    given: tuple[Finding, ...] = ()  # findings that others made, e.g. about the config file


class Board:
    """Implements the poller's sink. ``span_s``: the longest window that will be asked for.

    ``points``: reads kept within it for each worker. ``restarted`` is called with the key of a worker whose
    counters began anew.
    """

    def __init__(
        self,
        *,
        span_s: float = 60.0,
        tick_s: float = 1.0,
        stale_after_s: float = STALE_AFTER_S,
        points: int = WINDOW_POINTS,
        restarted: Callable[[str], None] | None = None,
    ) -> None:
        self.setting = Setting()
        self._span_s = span_s
        self._tick_s = tick_s
        self._points = points
        self._stale_after_s = stale_after_s
        self._loads_fresh_s = LOADS_FRESH_S
        self._restarted = restarted
        self._workers: dict[str, WorkerWatch] = {}
        self._targets: dict[str, WorkerTarget] = {}
        self._aliases: dict[str, str] = {}
        self._passed_on: dict[str, WorkerWatch] = {}  # known only from a router's aggregate page
        self._routers: dict[str, RouterWatch] = {}
        self._notices: tuple[str, ...] = ()
        self._memory: Memory = NOTHING
        self._named: tuple[Config | None, Mapping[str, Desired]] = (None, {})
        self._number = 0
        self._pool_trends = {role: Trends(tick_s) for role in POOLS}

    # The poller's sink

    def metrics(self, key: str, reading: MetricsReading) -> None:
        watch = self._workers.get(key)
        if watch is not None and watch.observe_metrics(reading) and self._restarted is not None:
            self._restarted(key)

    def loads(self, key: str, reading: LoadsReading) -> None:
        if (watch := self._workers.get(key)) is not None:
            watch.observe_loads(reading)

    def health(self, key: str, reading: HealthReading) -> None:
        if (watch := self._workers.get(key)) is not None:
            watch.observe_health(reading)

    def info(self, key: str, reading: InfoReading) -> None:
        if (watch := self._workers.get(key)) is not None:
            watch.observe_info(reading)

    def router(self, name: str, reading: RouterReading) -> None:
        if (watch := self._routers.get(name)) is not None:
            watch.observe_router(reading)

    def router_metrics(self, name: str, reading: RouterMetricsReading) -> None:
        watch = self._routers.get(name)
        if watch is None:
            return
        watch.observe_metrics(reading)
        for written, numbers in (reading.worker_pages or {}).items():
            key = key_of(written, None)
            if key not in self._workers:
                passed_on = self._passed_on.setdefault(key, self._watch(About(key, written)))
                passed_on.observe_metrics(
                    MetricsReading(reading.at, State.OK, reading.status, numbers=numbers)
                )

    def workers_changed(self, workers: tuple[WorkerTarget, ...], notices: tuple[str, ...]) -> None:
        """Watch these from now on; those that stay keep their past."""
        self._notices = notices
        self._targets = {target.key: target for target in workers}
        self._aliases = {alias: target.key for target in workers for alias in target.aliases}
        abouts = [
            About(target.key, target.name, target.role, target.weight, target.draining, target.ranks)
            for target in workers
        ]
        before = self._workers
        self._workers = {about.key: before.get(about.key) or self._watch(about) for about in abouts}
        config = self.setting.config
        for about in abouts:
            watch = self._workers[about.key]
            watch.about = about
            if config is not None:
                watch.weights = config.load
                watch.reachability.fail_after = config.health.unhealthy_threshold
                watch.reachability.recover_after = config.health.healthy_threshold
            self._passed_on.pop(about.key, None)

    # What is watched

    def routers_changed(self, routers: Iterable[RouterTarget]) -> None:
        """Watch these routers from now on."""
        before = self._routers
        self._routers = {
            target.name: before.get(target.name)
            or RouterWatch(
                target.name,
                url=target.address.base_url,
                address=target.address,
                span_s=self._span_s,
                stale_after_s=self._stale_after_s,
            )
            for target in routers
        }

    def add_router(self, watch: RouterWatch) -> None:
        """Watch one router more, however it was made."""
        self._routers[watch.name] = watch

    def add_worker(self, about: About) -> WorkerWatch:
        """Watch one worker more."""
        return self._workers.setdefault(about.key, self._watch(about))

    def worker(self, key: str) -> WorkerWatch | None:
        return self._workers.get(key) or self._passed_on.get(key)

    def router_watch(self, name: str) -> RouterWatch | None:
        return self._routers.get(name)

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other keys of watched workers, with the one that each is watched under."""
        return self._aliases

    def target(self, key: str) -> WorkerTarget | None:
        """Where the worker is asked; None if nobody asks it."""
        return self._targets.get(key)

    def metrics_urls(self, find: Callable[[str], str | None]) -> None:
        """Note where each router's metrics page was found."""
        for name, watch in self._routers.items():
            watch.metrics_url = find(name)

    def paced(self, interval_s: float, loads_interval_s: float) -> None:
        """How often pages and loads are read from now on; when numbers count as old follows it."""
        self._stale_after_s = max(STALE_AFTER_S, 3 * interval_s)
        self._loads_fresh_s = max(LOADS_FRESH_S, 3 * loads_interval_s)
        for worker in self._workers.values():
            worker.stale_after_s = self._stale_after_s
            worker.loads_fresh_s = self._loads_fresh_s
        for router in self._routers.values():
            router.stale_after_s = self._stale_after_s

    @property
    def asked(self) -> bool:
        """Whether everybody has been asked for everything once."""
        return all(watch.asked for watch in self._workers.values()) and all(
            watch.asked for watch in self._routers.values()
        )

    # Snapshots

    def snapshot(self, now: float, wall: float, span: Span, *, tick: bool = True) -> Snapshot:
        """Everything at ``now`` (the poller's clock; ``wall``: epoch seconds), over ``span``.

        ``tick`` adds a point to every trend; leave it out for a look between two ticks.
        """
        watches = {**self._passed_on, **self._workers}
        roles = {key: watch.role for key, watch in watches.items()}
        views = [watch.view(now, span, roles) for watch in self._routers.values()]
        opinions = _by_worker(views, self._aliases)
        derived = {key: page for key, watch in watches.items() if (page := watch.derived(span)) is not None}
        shares = assemble.shares(
            _roles(views) | roles,
            {
                key: count
                for key, said in opinions.items()
                if (count := assemble.dispatched(said)) is not None
            },
            {
                key: page.requests
                for key, page in derived.items()
                if page.requests is not None and not watches[key].missed_polls
            },
        )
        workers = tuple(
            watch.view(now, span, opinions.get(key, ()), share=shares.get(key), tick=tick)
            for key, watch in watches.items()
        )
        workers += _of_routers_only(views, opinions, shares, watches)
        pools = [self._pool(role, workers, derived, views, tick) for role in POOLS]
        self._number += 1
        snapshot = self._headline(workers, pools, views, wall, span, derived)
        snapshot = replace(snapshot, drift=differences(self._named_by_file(), snapshot))
        judgement = judge(snapshot, now, self._memory, given=self.setting.given)
        self._memory = judgement.memory
        return replace(snapshot, findings=judgement.findings)

    def _headline(
        self,
        workers: tuple[Worker, ...],
        pools: Sequence[Pool],
        views: Sequence[RouterView],
        wall: float,
        span: Span,
        derived: Mapping[str, Derived],
    ) -> Snapshot:
        prefill, decode = pools
        setting = self.setting
        routers = tuple(view.router for view in views)
        unified = assemble.pool(Role.UNIFIED, workers, derived)
        ttft = assemble.headline_ttft(routers, decode.ttft, unified.ttft)
        tpot = decode.tpot if decode.tpot is not None else unified.tpot
        slo = setting.config.slo if setting.config is not None else Slo()
        return Snapshot(
            number=self._number,
            cluster=setting.cluster,
            at=wall,
            window_s=_seconds(span),
            interval_s=setting.interval_s,
            tick_s=self._tick_s,
            routers=routers,
            prefill=prefill,
            decode=decode,
            workers=workers,
            ttft=ttft,
            ttft_prefill_part=assemble.prefill_part(routers, prefill.ttft),
            ttft_decode_part=decode.ttft if ttft is not None and ttft.source == "router" else None,
            tpot=tpot,
            goodput=goodput(slo, ttft, tpot),
            read_only=setting.read_only,
            config_error=setting.config_error,
            notices=(*setting.notices, *self._notices),
        )

    def _named_by_file(self) -> Mapping[str, Desired]:
        """The file's workers, found anew only when the file is."""
        config = self.setting.config
        if config is not self._named[0]:
            self._named = (config, desired(config) if config is not None else {})
        return self._named[1]

    def _watch(self, about: About) -> WorkerWatch:
        return WorkerWatch(
            about,
            span_s=self._span_s,
            tick_s=self._tick_s,
            stale_after_s=self._stale_after_s,
            loads_fresh_s=self._loads_fresh_s,
            points=self._points,
        )

    def _pool(
        self,
        role: Role,
        workers: Sequence[Worker],
        derived: Mapping[str, Derived],
        views: Sequence[RouterView],
        tick: bool,
    ) -> Pool:
        pool = assemble.pool(role, workers, derived, policy=self._policy(role, views))
        trends = self._pool_trends[role]
        if tick:
            trends.add(trend_points(pool, pool.kv_use_worst))
        return replace(pool, trends=trends.recent())

    def _policy(self, role: Role, views: Sequence[RouterView]) -> str:
        """As the router counts its selections; else as the config says it, with the thresholds of our own."""
        told = [view.policies[role] for view in views if role in view.policies]
        config = self.setting.config
        ours = any(view.router.engine == "pdtop" for view in views)
        if config is None or (told and not ours):
            return told[0] if told else ""
        own = config.prefill if role is Role.PREFILL else config.decode
        if ours and own.policy == "cache_aware":
            return f"{own.policy} {own.cache_aware_threshold:.2f} / {own.load_balance_threshold:.2f}"
        return own.policy


def _by_worker(
    views: Sequence[RouterView], aliases: Mapping[str, str]
) -> dict[str, tuple[RouterOpinion, ...]]:
    """Every router's opinion of each worker, in the order of the routers; one under two names has both."""
    found: dict[str, tuple[RouterOpinion, ...]] = {}
    for view in views:
        for said_of, opinion in view.opinions.items():
            key = aliases.get(said_of, said_of)
            found[key] = (*found.get(key, ()), opinion)
    return found


def _roles(views: Sequence[RouterView]) -> dict[str, Role]:
    """Roles as routers tell them, of all workers that they speak of."""
    return {key: view.roles.get(key, Role.UNKNOWN) for view in views for key in view.opinions}


def _of_routers_only(
    views: Sequence[RouterView],
    opinions: Mapping[str, tuple[RouterOpinion, ...]],
    shares: Mapping[str, float],
    watched: Mapping[str, WorkerWatch],
) -> tuple[Worker, ...]:
    """Workers that nobody asks and only routers speak of (their list is not to be had): names and shares."""
    names = {key: name for view in views for key, name in view.names.items()}
    roles = _roles(views)
    return tuple(
        Worker(key, names[key], roles[key], None, opinions=said, share=shares.get(key))
        for key, said in opinions.items()
        if key not in watched and any(opinion.listed for opinion in said)
    )


def _seconds(span: Span) -> float:
    if span is None:
        return 0.0
    return span[1] - span[0] if isinstance(span, tuple) else span
