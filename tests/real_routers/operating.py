"""An operator over real routers, as a console runs it: with a thread, a config.toml and a state folder."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from pdtop.cluster.launch import watch_file
from pdtop.cluster.model import Health
from pdtop.cluster.monitor import Monitor
from pdtop.operations.arming import Arming
from pdtop.operations.model import DrainProgress, Operation, Phase, Plan, Request, View
from pdtop.operations.operator import Operator
from pdtop.simulator.worker import SimWorker
from tests.real_routers.launcher import Engine, Router
from tests.simulator.comparison import key
from tests.simulator.support import Answer, both, get, post, until

INTERVAL_S = 0.2
_PATIENCE_S = 30.0  # ends a wait that would be a failure
_LOOK_S = 0.01


def write_config(path: Path, routers: Sequence[Router], workers: Sequence[SimWorker]) -> Path:
    """A config.toml for them; the pools' workers stand in one line each."""
    server = {"url": routers[0].url, "metrics_url": routers[0].metrics_url}
    lines = ["[server]", *(f"{name} = {json.dumps(value)}" for name, value in server.items())]
    lines.append(f"replica_urls = {json.dumps([router.url for router in routers[1:]])}")
    for role in ("prefill", "decode"):
        members = [key(worker) for worker in workers if worker.spec.role == role]
        lines += ["", f"[{role}]  # {role} workers", f"workers = {json.dumps(members)}"]
    for worker in workers:
        if worker.spec.role == "prefill":
            lines += ["", f'[prefill.worker."{key(worker)}"]', f"bootstrap_port = {worker.bootstrap_port}"]
    lines += ["", "[console]", "window_secs = 10.0"]
    lines += [f"{name}interval_secs = {INTERVAL_S}" for name in ("", "loads_", "health_")]
    path.write_text("\n".join(lines) + "\n")
    return path


class Console:
    """What a console does with the gate, and when it was first shown what."""

    def __init__(self, monitor: Monitor, operator: Operator) -> None:
        self.monitor = monitor
        self.operator = operator
        self._shown: dict[str, dict[Phase, float]] = {}  # by operation; monotonic seconds
        operator.subscribe(self._note)

    def _note(self, view: View) -> None:
        for operation in view.operations:
            self._shown.setdefault(operation.id, {}).setdefault(operation.phase, time.monotonic())

    async def plan(self, request: Request) -> Plan:
        return await asyncio.to_thread(self.operator.plan, request)

    async def start(self, request: Request, *typed: str) -> Operation:
        plan = await self.plan(request)
        asked = time.monotonic()
        operation = await asyncio.to_thread(lambda: self.operator.start(plan, typed=typed))
        self._shown.setdefault(operation.id, {})[Phase.WAITING] = asked
        return operation

    async def run(self, request: Request, *typed: str) -> Operation:
        """Start it and see it to its end."""
        return await self.ended((await self.start(request, *typed)).id)

    async def ended(self, operation_id: str) -> Operation:
        return await self.operation(lambda one: one.id == operation_id and one.ended)

    async def in_phase(self, operation: Operation, phase: Phase) -> Operation:
        """The operation as soon as it is there, or has ended."""
        return await self.operation(lambda one: one.id == operation.id and (one.phase is phase or one.ended))

    def seconds_to(self, operation: Operation, phase: Phase) -> float:
        """From when it was asked for, or first shown if nobody asked."""
        shown = self._shown[operation.id]
        return shown[phase] - min(shown.values())

    def ended_at(self, operation: Operation) -> float:
        return self._shown[operation.id][Phase.ENDED]

    async def operation(self, fits: Callable[[Operation], bool]) -> Operation:
        """The first operation on the screen that ``fits``."""

        def found() -> list[Operation]:
            return [one for one in self.operator.view().operations if fits(one)]

        await self.until(lambda: bool(found()))
        return found()[0]

    def progress(self, worker: SimWorker) -> DrainProgress | None:
        return self.operator.view().drain_of(key(worker))

    async def progress_of(
        self, worker: SimWorker, fits: Callable[[DrainProgress], bool] = lambda _: True
    ) -> DrainProgress:
        def found() -> DrainProgress | None:
            one = self.progress(worker)
            return one if one is not None and fits(one) else None

        await self.until(lambda: found() is not None)
        progress = found()
        assert progress is not None
        return progress

    async def polls(self, count: int) -> None:
        """Return when so many more snapshots have come."""
        last = self.monitor.latest().number + count
        await self.until(lambda: self.monitor.latest().number >= last)

    async def sees(self, worker: SimWorker, health: Health | None, router: int = 0) -> None:
        """Return when the router lists the worker so; None: not at all, or as one that gets no new work."""
        name = self.monitor.targets.routers[router].name

        def listed() -> Health | None:
            shown = self.monitor.latest().worker(key(worker))
            said = [o for o in shown.opinions if o.router == name and o.listed] if shown else []
            return next((o.health for o in said if o.health is not Health.DRAINING), None)

        await self.until(lambda: listed() is health)

    async def grows(self, statuses: list[int], by: int = 10) -> None:
        """Return when so many more have come."""
        wanted = len(statuses) + by
        await self.until(lambda: len(statuses) >= wanted)

    async def until(self, check: Callable[[], bool]) -> None:
        """Return when ``check`` holds; if it never does, say what the screen shows."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not check():  # noqa: ASYNC110 - it is other threads and processes that change it
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            view = self.operator.view()
            told = [(one.plan.title, one.phase, one.outcome, one.words) for one in view.operations]
            raise AssertionError(f"it did not happen; shown: {told}, {view.drains}, {view.notices}") from None


@asynccontextmanager
async def operating(config: Path) -> AsyncIterator[Console]:
    """An armed console over ``config``; its state is kept beside the file."""
    watched = watch_file(config)
    monitor = Monitor(watched.targets, loaded=watched.loaded, window_s=10.0, tick_s=INTERVAL_S)
    monitor.start()
    try:
        assert await asyncio.to_thread(monitor.wait_first_round, 10.0)
        root = config.parent / "state"
        operator = Operator(monitor, path=config, arming=Arming(False, "--write"), root=root)
        assert not operator.view().read_only
        try:
            yield Console(monitor, operator)
        finally:
            operator.close()
    finally:
        await asyncio.to_thread(monitor.stop)


@asynccontextmanager
async def routed(
    engine: Engine, running: Sequence[SimWorker], folder: Path, *args: str, replicas: int = 0
) -> AsyncIterator[list[Router]]:
    """A started router, and replicas that are not; their config.toml is in ``folder``."""
    routers = [Router(engine, running, folder / f"log{n}", args=args) for n in range(1 + replicas)]
    write_config(folder / "config.toml", routers, running)
    try:
        await routers[0].start()
        yield routers
    finally:
        for router in routers:
            await router.kill()


@asynccontextmanager
async def traffic(session: aiohttp.ClientSession, *routers: Router) -> AsyncIterator[list[int]]:
    """Short chats, two at a time through each router, each with a text of its own; their statuses."""
    statuses: list[int] = []

    async def ask(router: Router, number: int) -> None:
        for count in itertools.count():
            answer = await chat(session, router, 2, text=f"{router.url} {number} {count} " + "x" * 400)
            statuses.append(answer.status)

    tasks = [asyncio.create_task(ask(router, number)) for router in routers for number in range(2)]
    try:
        yield statuses
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results


@asynccontextmanager
async def held(
    session: aiohttp.ClientSession, prefill: SimWorker, decode: SimWorker, count: int
) -> AsyncIterator[None]:
    """So many requests on a decode worker that no router knows of; they end with the context."""
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5_000, "stream": True}
    tasks = [
        asyncio.create_task(
            both(session, prefill, decode, "/v1/chat/completions", {**body, "bootstrap_room": room})
        )
        for room in range(1, count + 1)
    ]
    try:
        await until(session, decode, "running", count)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def figures(engine: Engine, **seconds: float) -> None:
    """Measured, not asserted: shown by ``pytest -s``."""
    print(engine.name, *(f"{name}={value:.2f}" for name, value in seconds.items()))


def received(*workers: SimWorker) -> int:
    """Requests that ever reached the workers."""
    return sum(worker.telemetry.truth.counts["received"] for worker in workers)


def work(worker: SimWorker) -> int:
    """Chats on a worker from their arrival to their last byte, by its own count."""
    labels = {"endpoint": "/v1/chat/completions", "method": "POST"}
    return int(worker.telemetry.registry.value("http_requests_active", labels).value)


async def listed(session: aiohttp.ClientSession, router: Router, secret: str = "") -> dict[str, Any]:
    """The router's workers by URL, as it says itself."""
    answer = await get(session, router.url + "/workers", Authorization=f"Bearer {secret}")
    return {entry["url"]: entry for entry in answer.json["workers"]}


async def chat(session: aiohttp.ClientSession, router: Router, tokens: int, *, text: str = "hello") -> Answer:
    """One streamed chat."""
    body = {
        "model": "demo-llama-70b",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "stream": True,
    }
    return await post(session, router.url + "/v1/chat/completions", body)
