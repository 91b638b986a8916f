"""Asks every worker and router at its own pace; one target never waits for another."""

from __future__ import annotations

import asyncio
import math
import random
import resource
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from pdtop.cluster.discovery import RouterClient
from pdtop.cluster.http import Dialler
from pdtop.cluster.model import Role, State
from pdtop.cluster.pace import Pace, Schedule, after
from pdtop.cluster.readings import (
    HealthReading,
    InfoReading,
    ListedWorker,
    LoadsReading,
    MetricsReading,
    RouterMetricsReading,
    RouterReading,
)
from pdtop.cluster.targets import PollSettings, RouterTarget, Targets, WorkerTarget, combine
from pdtop.cluster.worker_client import FirstAt, WorkerClient

ROUTER_INTERVAL_S = 2.0
#: First requests are spread over this much a worker, up to the limit: hundreds at once would queue up.
SPREAD_PER_WORKER_S = 0.004
SPREAD_LIMIT_S = 0.5
SLOT_S = 1 / 16
C = TypeVar("C", WorkerClient, RouterClient)


class Sink(Protocol):
    """Takes readings on the poller's loop. ``key`` is a worker's canonical key, ``name`` a router's name."""

    def metrics(self, key: str, reading: MetricsReading) -> None: ...
    def loads(self, key: str, reading: LoadsReading) -> None: ...
    def health(self, key: str, reading: HealthReading) -> None: ...
    def info(self, key: str, reading: InfoReading) -> None: ...
    def router(self, name: str, reading: RouterReading) -> None: ...
    def router_metrics(self, name: str, reading: RouterMetricsReading) -> None: ...

    def workers_changed(self, workers: tuple[WorkerTarget, ...], notices: tuple[str, ...]) -> None:
        """The workers watched from now on, in order; readings of others are no longer wanted."""


class Poller:
    """Polls until cancelled. All methods are to be called on the loop that runs it.

    ``seed`` fixes when within the first moments each target is asked.
    """

    def __init__(self, targets: Targets, sink: Sink, *, seed: int = 0) -> None:
        self._targets = targets
        self._sink = sink
        self._random = random.Random(seed)
        self._pace = Pace(targets.settings.interval_s)
        self._dialler = _dialler(targets.settings)
        self._workers: dict[str, _Running[WorkerClient]] = {}
        self._routers: dict[str, _Running[RouterClient]] = {}
        self._lists: dict[str, _Lists] = {}
        self._fingerprints: dict[str, str] = {}
        self._announced: tuple[tuple[WorkerTarget, ...], tuple[str, ...]] | None = None
        self._began = 0.0
        self._broken: asyncio.Future[None] | None = None

    @property
    def interval_s(self) -> float:
        return self._pace.interval_s

    @property
    def targets(self) -> Targets:
        return self._targets

    def metrics_url(self, router: str) -> str | None:
        """Where a router's metrics page was found; None: not yet."""
        running = self._routers.get(router)
        return running.client.metrics_url if running is not None else None

    async def run(self) -> None:
        """Poll until cancelled; then close all connections."""
        loop = asyncio.get_running_loop()
        self._began, self._broken = loop.time(), loop.create_future()
        self._update()
        try:
            await self._broken  # ends only if one of the loops does, which is a bug and not to be hidden
        finally:
            await self._stop()

    def apply(self, targets: Targets) -> None:
        """Watch this from now on (config reload): what has not changed keeps its connections and its pace."""
        before, self._targets = self._targets, targets
        if targets.settings.interval_s != before.settings.interval_s:
            self._pace.change(targets.settings.interval_s)
        if replace(targets.settings, interval_s=before.settings.interval_s) != before.settings:
            self._cancel_all()
            self._dialler.close()
            self._dialler = _dialler(targets.settings)
        if self._broken is not None:
            self._update()

    def set_interval(self, seconds: float) -> None:
        """Change the pace of the metrics pages; the others stay."""
        self._pace.change(seconds)

    def restarted(self, key: str) -> None:
        """Ask a worker again for what is asked only once: somebody saw that its counters began anew."""
        running = self._workers.get(key)
        if running is not None:
            running.client.restarted()

    async def _stop(self) -> None:
        tasks = self._cancel_all()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._dialler.close()

    def _cancel_all(self) -> list[asyncio.Task[None]]:
        workers, routers = list(self._workers.values()), list(self._routers.values())
        tasks = [task for worker in workers for task in worker.tasks]
        tasks += [task for router in routers for task in router.tasks]
        self._workers.clear()
        self._routers.clear()
        _cancel(tasks)
        return tasks

    def _update(self) -> None:
        """Make the running clients those that the targets and the routers' lists ask for."""
        targets = self._targets
        names = {router.name for router in targets.routers}
        lists = {name: known.entries() for name, known in self._lists.items() if name in names}
        combined = combine(targets, lists)
        same = _doubles(combined.workers, self._fingerprints)
        if same:
            combined = combine(targets, lists, same)
        _allow_files(8 * len(combined.workers) + 256)
        self._update_routers(targets.routers)
        self._update_workers(combined.workers)
        notices = (*targets.notices, *combined.notices)
        if self._announced != (combined.workers, notices):
            self._announced = combined.workers, notices
            self._sink.workers_changed(combined.workers, notices)

    def _update_routers(self, targets: tuple[RouterTarget, ...]) -> None:
        wanted = {target.name: target for target in targets}
        for name in [n for n, one in self._routers.items() if wanted.get(n) != one.client.target]:
            _cancel(self._routers.pop(name).tasks)
            self._lists.pop(name, None)
        for name, target in wanted.items():
            if name not in self._routers:
                client = RouterClient(target, self._dialler, self._targets.settings)
                loops = self._poll_router(client), self._poll_router_metrics(client)
                self._routers[name] = _Running(client, [self._spawn(loop) for loop in loops])

    def _update_workers(self, targets: tuple[WorkerTarget, ...]) -> None:
        wanted = {target.key: target for target in targets}
        for key, running in list(self._workers.items()):
            target = wanted.get(key)
            if target is not None and _asked_alike(target, running.client.target):
                running.client.target = target
            else:
                _cancel(self._workers.pop(key).tasks)
        spread = min(SPREAD_LIMIT_S, SPREAD_PER_WORKER_S * len(wanted))
        for key, target in wanted.items():
            if key not in self._workers:
                client = WorkerClient(
                    target,
                    self._dialler,
                    self._targets.settings,
                    self._sink,
                    self._pace,
                    self._first_at(spread),
                    self._told_who,
                )
                self._workers[key] = _Running(client, [self._spawn(loop()) for loop in client.loops()])

    def _first_at(self, spread: float) -> FirstAt:
        """Somewhere within ``spread``, in steps: one wake-up for several targets saves a quarter of CPU."""
        slots = math.floor(self._random.random() * spread / SLOT_S)
        passed = math.ceil((asyncio.get_running_loop().time() - self._began) / SLOT_S)
        at = self._began + (passed + slots) * SLOT_S
        return FirstAt(metrics=at, loads=at + spread / 2, health=at + spread, info=at + 1.5 * spread)

    async def _poll_router(self, client: RouterClient) -> None:
        name = client.target.name
        schedule = Schedule(asyncio.get_running_loop().time())
        pace = Pace(ROUTER_INTERVAL_S)
        while True:
            await pace.sleep_until(schedule.due)
            reading = await client.read()
            self._sink.router(name, reading)
            after(schedule, reading.at, reading.state, ROUTER_INTERVAL_S)
            if reading.workers is not None and self._lists.setdefault(name, _Lists()).add(reading.workers):
                self._update()

    async def _poll_router_metrics(self, client: RouterClient) -> None:
        name = client.target.name
        schedule = Schedule(asyncio.get_running_loop().time())
        while True:
            while not await self._pace.sleep_until(schedule.due):
                schedule.repace(self._pace.interval_s)
            reading = await client.read_metrics()
            self._sink.router_metrics(name, reading)
            after(schedule, reading.at, reading.state, self._pace.interval_s)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    def _told_who(self, key: str, reading: InfoReading) -> None:
        """Take note; two workers with one fingerprint are one worker under two names."""
        if reading.state is State.OK and self._fingerprints.get(key) != reading.fingerprint:
            self._fingerprints[key] = reading.fingerprint
            self._update()


@dataclass(slots=True)
class _Running(Generic[C]):
    """A client and the tasks that run its loops."""

    client: C
    tasks: list[asyncio.Task[None]]


@dataclass(slots=True)
class _Lists:
    """A router's last two worker lists: one that it starts anew with must not end what is watched."""

    newest: tuple[ListedWorker, ...] = ()
    before: tuple[ListedWorker, ...] = ()

    def add(self, workers: tuple[ListedWorker, ...]) -> bool:
        """Take the next list; True if it makes a difference."""
        old = _who(self.entries())
        self.before, self.newest = self.newest, workers
        return _who(self.entries()) != old

    def entries(self) -> tuple[ListedWorker, ...]:
        """Those of the newest list, then those that only the one before had."""
        urls = {worker.url for worker in self.newest}
        return (*self.newest, *(worker for worker in self.before if worker.url not in urls))


def _who(workers: tuple[ListedWorker, ...]) -> frozenset[tuple[str, Role]]:
    return frozenset((worker.url, worker.role) for worker in workers)


def _doubles(workers: tuple[WorkerTarget, ...], fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Keys that are another, earlier key's worker."""
    first: dict[str, str] = {}
    same: dict[str, str] = {}
    for worker in workers:
        fingerprint = fingerprints.get(worker.key)
        if fingerprint and first.setdefault(fingerprint, worker.key) != worker.key:
            same[worker.key] = first[fingerprint]
    return same


def _dialler(settings: PollSettings) -> Dialler:
    return Dialler(
        ca_file=settings.ca_file,
        connect_to=settings.connect_to,
        max_body_bytes=settings.max_body_bytes,
    )


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def _asked_alike(one: WorkerTarget, other: WorkerTarget) -> bool:
    """True if the same places are dialled for both, with the same key."""
    return _asking(one) == _asking(other)


def _asking(target: WorkerTarget) -> tuple[object, ...]:
    return target.address, target.metrics, target.key_variable, target.own_key


def _allow_files(count: int) -> None:
    """Let this process hold that many sockets: the usual soft limit of 1024 is too low for hundreds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
