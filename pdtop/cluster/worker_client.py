"""Asks one worker: four endpoints, each at its own pace, with one request open on each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from math import inf
from typing import Protocol

from pdtop.cluster.answers import KeyUse
from pdtop.cluster.http import Dialler
from pdtop.cluster.interpret import health_reading, info_reading, loads_reading, metrics_reading
from pdtop.cluster.model import State
from pdtop.cluster.pace import NO_ANSWER, Pace, Schedule, after
from pdtop.cluster.readings import Answer, HealthReading, InfoReading, LoadsReading, MetricsReading
from pdtop.cluster.targets import PollSettings, WorkerTarget
from pdtop.metrics.worker_page import WorkerPageReader

METRICS = "/metrics"
LOADS_PATHS = ("/v1/loads", "/get_load")  # 0.5.8 on; before that up to 0.5.20
HEALTH_PATHS = ("/ready", "/health")  # 0.5.20 on; all, but it costs a token and a second
INFO_PATHS = ("/server_info", "/get_server_info", "/model_info")
INFO_TIMEOUT_S = 5.0  # it asks every scheduler and hangs with any of them
INFO_AGAIN_S = 30.0  # after a failure
HUGE_BYTES = 2**19  # a page of many ranks may be larger; a hostile one takes seconds to read
HUGE_REST = 4.0  # times what reading a page took: at least so long until the next one


@dataclass(frozen=True, slots=True)
class FirstAt:
    """When each endpoint is asked for the first time: apart, so that one connection can serve them all."""

    metrics: float
    loads: float
    health: float
    info: float


class WorkerSink(Protocol):
    """Takes one worker's readings."""

    def metrics(self, key: str, reading: MetricsReading) -> None: ...
    def loads(self, key: str, reading: LoadsReading) -> None: ...
    def health(self, key: str, reading: HealthReading) -> None: ...
    def info(self, key: str, reading: InfoReading) -> None: ...


class WorkerClient:
    """One worker. Run :meth:`loops` as tasks. ``first_at`` are the times of the first request of each."""

    def __init__(
        self,
        target: WorkerTarget,
        dialler: Dialler,
        settings: PollSettings,
        sink: WorkerSink,
        pace: Pace,
        first_at: FirstAt,
        told_who: Callable[[str, InfoReading], None],
    ) -> None:
        self.target = target
        self._dialler = dialler
        self._settings = settings
        self._sink = sink
        self._pace = pace  # of the metrics pages, shared by all workers
        self._first_at = first_at
        self._told_who = told_who
        self._own = Pace(0.0)  # sleeps of the other loops, which only a restart ends
        self._restarts = 0
        self._page = WorkerPageReader()
        self._pids: frozenset[str] = frozenset()
        self._key = target.bearer(settings)
        self._keys = KeyUse(target.key_variable or settings.key_variable, self._key is not None)

    def loops(self) -> tuple[Callable[[], Coroutine[None, None, None]], ...]:
        """What to run, each on its own. A gRPC worker has at most a metrics page, at another address."""
        if self.target.address.speaks_http:
            return self.poll_metrics, self.poll_loads, self.poll_health, self.poll_info
        return (self.poll_metrics,)

    def restarted(self) -> None:
        """The worker is another process than before: it may be another release with another identity."""
        self._restarts += 1
        self._own.wake()

    async def poll_metrics(self) -> None:
        """``/metrics``, for ever. Notices by itself that a worker was away or has other processes."""
        place = self.target.metrics or self.target.address
        if not place.speaks_http:
            self._sink.metrics(self.target.key, _grpc(asyncio.get_running_loop().time()))
            return
        schedule = Schedule(self._first_at.metrics)
        away = False
        while True:
            while not await self._pace.sleep_until(schedule.due):
                schedule.repace(self._pace.interval_s)
            answer = await self._dialler.get(
                place, METRICS, timeout_s=self._settings.timeout_s, key=self._key
            )
            reading, ready = await self._read(answer)
            del answer  # or hundreds of pages are kept while their loops sleep
            self._sink.metrics(self.target.key, reading)
            if reading.state in NO_ANSWER:
                away = away or reading.state is State.REFUSED
                schedule.failed(reading.at, self._pace.interval_s)
                continue
            schedule.answered(ready, self._pace.interval_s)
            pids = reading.numbers.pids if reading.numbers is not None else frozenset()
            if away or (pids and self._pids and pids.isdisjoint(self._pids)):
                self.restarted()
            away, self._pids = False, pids or self._pids

    async def _read(self, answer: Answer) -> tuple[MetricsReading, float]:
        """What a page says, and when the next one may be asked for. Nobody else waits for a huge one."""
        if len(answer.body) < HUGE_BYTES:
            return metrics_reading(answer, self._page, self._keys), answer.at
        loop = asyncio.get_running_loop()
        began = loop.time()
        reading = await asyncio.to_thread(metrics_reading, answer, self._page, self._keys)
        return reading, answer.at + (1.0 + HUGE_REST) * (loop.time() - began)

    async def poll_loads(self) -> None:
        """``/v1/loads`` or its forerunner, until it is clear that there is neither; again after a restart."""
        schedule = Schedule(self._first_at.loads)
        while True:
            restarts, at = self._restarts, 0
            while restarts == self._restarts:
                await self._own.sleep_until(schedule.due)
                answer = await self._get(LOADS_PATHS[at])
                reading = loads_reading(answer, self._keys)
                if not reading.supported and at + 1 < len(LOADS_PATHS):
                    at += 1  # asked at once: the first answer costs nothing
                    continue
                self._sink.loads(self.target.key, reading)
                if not reading.supported:
                    await self._until_restart(restarts)
                interval = self._settings.loads_interval_s if at == 0 else self._pace.interval_s
                after(schedule, answer.at, reading.state, interval)

    async def poll_health(self) -> None:
        """``/ready``, else ``/health``; until it is clear that there is neither; again after a restart."""
        schedule = Schedule(self._first_at.health)
        while True:
            restarts, at = self._restarts, 0
            while restarts == self._restarts:
                await self._own.sleep_until(schedule.due)
                path = HEALTH_PATHS[at]
                slow = self._settings.health_timeout_s
                answer = await self._get(path, slow if path == "/health" else self._settings.timeout_s)
                if answer.status == 404 and at + 1 < len(HEALTH_PATHS):
                    at += 1
                    continue
                reading = health_reading(answer, path)
                self._sink.health(self.target.key, reading)
                if answer.status == 404:
                    await self._until_restart(restarts)
                after(schedule, answer.at, reading.state, self._settings.health_interval_s)

    async def poll_info(self) -> None:
        """``/server_info`` and its older names, once; again after a restart, and while it cannot be had."""
        schedule = Schedule(self._first_at.info)
        while True:
            await self._own.sleep_until(schedule.due)
            restarts = self._restarts
            for path in INFO_PATHS:
                answer = await self._get(path, max(INFO_TIMEOUT_S, self._settings.timeout_s))
                if answer.status != 404:
                    break
            reading = info_reading(answer, self._keys)
            self._sink.info(self.target.key, reading)
            self._told_who(self.target.key, reading)
            if answer.status == 200 or answer.status == 404:
                await self._until_restart(restarts)
                schedule = Schedule(asyncio.get_running_loop().time())
            else:
                schedule.failed(answer.at, INFO_AGAIN_S)

    async def _get(self, path: str, timeout_s: float | None = None) -> Answer:
        return await self._dialler.get(
            self.target.address,
            path,
            timeout_s=self._settings.timeout_s if timeout_s is None else timeout_s,
            key=self._key,
        )

    async def _until_restart(self, restarts: int) -> None:
        while restarts == self._restarts:
            await self._own.sleep_until(inf)


def _grpc(now: float) -> MetricsReading:
    return MetricsReading(
        now,
        State.METRICS_DISABLED,
        reason="a gRPC worker: its metrics are on another port, which its address does not tell",
        fix="name it: metrics_url under the worker's own table in config.toml",
    )
