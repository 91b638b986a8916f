"""Asks every worker how it is: ready or not, its load, its model's name; one task a worker."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from time import monotonic

from pdtop.config.schema import Health
from pdtop.gateway.dialing import Dialer
from pdtop.gateway.fleet import Fleet
from pdtop.gateway.loads import read_report
from pdtop.gateway.metrics import RouterMetrics
from pdtop.gateway.pool import Backend

LOADS_EVERY_S = 1.0
LOADS_TIMEOUT_S = 2.0

#: SGLang before 0.5.20 has no ``/ready``, and its ``/health`` generates a token: it takes 1 s and more.
HEALTH_LEAST_S = 5.0

#: A worker that does not have a page is not asked for it again for so long.
ABSENT_S = 60.0

#: Streams that an ejected worker has begun may go on; silent for so long (seconds), they are given up.
SILENCE_S = 10.0


class Prober:
    """Keeps one task for each worker of the fleet; :meth:`sync` after the fleet has changed."""

    def __init__(self, fleet: Fleet, dialer: Dialer, metrics: RouterMetrics) -> None:
        self._fleet = fleet
        self._dialer = dialer
        self._metrics = metrics
        self._tasks: dict[Backend, tuple[asyncio.Task[None], ...]] = {}
        self._news = asyncio.Event()

    @property
    def _health(self) -> Health:
        return self._fleet.config.health

    def renew(self) -> None:
        """Other settings are in force: ask everybody now, and from now on as they say."""
        news, self._news = self._news, asyncio.Event()
        news.set()
        self.sync()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def sync(self) -> None:
        """Start asking new workers, stop asking those that are gone."""
        present = set(self._fleet)
        for backend in self._tasks.keys() - present:
            for task in self._tasks.pop(backend):
                task.cancel()
        for backend in present - self._tasks.keys():
            loops = (self._probe(backend), self._poll(backend))
            self._tasks[backend] = tuple(asyncio.create_task(loop) for loop in loops)

    async def stop(self) -> None:
        tasks = [task for pair in self._tasks.values() for task in pair]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _probe(self, backend: Backend) -> None:
        path = "/ready"
        asked_ready = 0.0
        named = False
        while not backend.gone:
            if not named and backend.probes.healthy and (name := await self._model(backend)):
                backend.model, named = name, True
            if path != "/ready" and monotonic() - asked_ready > ABSENT_S:
                path = "/ready"  # it may be a newer one by now
            status = await self._status(backend, path)
            if path == "/ready" and status in (404, 405):
                path, asked_ready = "/health", monotonic()
                status = await self._status(backend, path)
            if path == "/ready" and status == 503 and not backend.probes.healthy:
                # After a failed /health, /ready stays 503 until somebody asks /health again.
                status = await self._status(backend, "/health")
            # A hung scheduler leaves /ready at 200; its numbers stand still.
            stuck = backend.report is not None and backend.report.stuck
            self.record(backend, status == 200 and not stuck)
            named &= backend.probes.healthy  # it may come back with another model
            # Not all at the same moment: several workers often share a machine.
            await self._pause(self._health.interval_secs * random.uniform(0.9, 1.0))

    def record(self, backend: Backend, ok: bool) -> None:
        """Take one probe's result in; what waits for an ejected worker waits no longer."""
        before = backend.probes.healthy
        backend.probes.record(ok)
        self._metrics.checks.labels(backend.role, "success" if ok else "failure").inc()
        if before and not backend.probes.healthy:
            backend.prefixes.clear()  # most come back after a restart, with an empty cache
            now = asyncio.get_running_loop().time()
            for leg in tuple(backend.legs):
                if leg.limit is not None:
                    leg.limit.reschedule(now + SILENCE_S if leg.streaming else now)

    async def _status(self, backend: Backend, path: str) -> int | None:
        limit = self._health.timeout_secs
        if path == "/health":
            limit = max(limit, HEALTH_LEAST_S)
        page = await self._dialer.page(backend, path, limit)
        return page.status if page is not None else None

    async def _poll(self, backend: Backend) -> None:
        while not backend.gone:
            page = await self._dialer.page(backend, "/v1/loads?include=core,disagg", LOADS_TIMEOUT_S)
            status, body = (page.status, page.json) if page is not None else (None, None)
            backend.reported(read_report(body, monotonic()) if status == 200 else None)
            await self._pause(ABSENT_S if status in (404, 405) else LOADS_EVERY_S)

    async def _model(self, backend: Backend) -> str | None:
        """The name under which the worker serves its model; None if it does not say."""
        page = await self._dialer.page(backend, "/v1/models", self._health.timeout_secs)
        match page.json if page is not None else None:
            case {"data": [{"id": str(name)}, *_]} if name.isprintable():  # it becomes a label
                return name[:200]
        return None
