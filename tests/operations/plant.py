"""A cluster on the test's own loop, in virtual time: stub workers and routers, the real monitor and gate.

Nothing is waited for in real time: what would take minutes is over in a moment, in the same order each time.
"""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec
from unittest.mock import patch

from aiohttp import web

from pdtop.cluster import monitor as monitor_module
from pdtop.cluster.launch import watch_file
from pdtop.cluster.monitor import Monitor
from pdtop.config import watch as watch_module
from pdtop.config.load import load
from pdtop.config.watch import ConfigWatch
from pdtop.gateway.app import Gateway
from pdtop.operations.arming import Arming
from pdtop.operations.model import DrainProgress, LogEntry, Operation, Outcome, Phase, Plan, Request, View
from pdtop.operations.operator import Operator
from tests.cluster.story import page
from tests.cluster.stub_server import Reply, StubServer
from tests.cluster.stub_server import Request as Asked
from tests.cluster.virtual_time import VirtualLoop, run
from tests.routers.model_router import ModelRouter

P = ParamSpec("P")
ARMED = Arming(False, "--write")
EPOCH = 1_700_000_000.0
#: Virtual seconds; a failure ends so.
PATIENCE_S = 120.0
_LOOK_S = 0.25
_QUEUES = {
    "prefill": ("num_queue_reqs", "num_prefill_prealloc_queue_reqs", "num_prefill_inflight_queue_reqs"),
    "decode": ("num_queue_reqs", "num_decode_prealloc_queue_reqs", "num_decode_transfer_queue_reqs"),
}


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that runs in virtual time."""

    @functools.wraps(test)
    def running(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return running


_loop: list[asyncio.AbstractEventLoop] = []


def _virtual_now() -> float:
    """Also for a thread of the loop, in which time stands still."""
    return _loop[-1].time()


class _Clock:
    """In the place of the module ``time``."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def time() -> float:
        return EPOCH + _virtual_now()


class LoopMonitor(Monitor):
    """The monitor on the loop of the test instead of a thread of its own."""

    async def begin(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._supervise())
        while not self._first_round.is_set():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(1.0 if isinstance(self._loop, VirtualLoop) else 0.0)

    async def end(self) -> None:
        self._stopping = True
        self._cancel()
        await self._running


async def _no_events(path: Path) -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield None


@dataclass
class StubWorker:
    role: str
    running: int = 0
    waiting: int = 0
    version: str = "0.5.23"
    port: int = 0

    @property
    def key(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.key}"

    def answer(self, request: Asked) -> Reply:
        match request.route:
            case "/metrics":
                values: dict[str, float] = dict.fromkeys(_QUEUES[self.role], 0)
                values |= {"num_running_reqs": self.running, "num_queue_reqs": self.waiting}
                values |= {"token_usage": 0.1, "max_total_num_tokens": 1000}
                return Reply(200, {"content-type": "text/plain"}, page(**values).encode())
            case "/ready" | "/health":
                return Reply()
            case "/server_info":
                info = {"version": self.version, "model_path": "m", "disaggregation_mode": self.role}
                return Reply(body=json.dumps({**info, "port": self.port}).encode())
            case _:
                return Reply(404)


@dataclass
class StubRouter:
    """``refuses`` answers every request that is no reading, ``closed`` every request, with this status."""

    model: ModelRouter
    server: StubServer
    name: str = ""
    down: bool = False
    hangs_on: str = ""
    slow_s: float = 0.0  # before a change is taken
    refuses: int | None = None
    closed: int | None = None
    says: str = "not with this key"

    @property
    def urls(self) -> set[str]:
        """Workers that get new work."""
        return {url for url, one in self.model.workers.items() if one.get("status") != "draining"}

    async def answer(self, request: Asked) -> Reply:
        if self.down:
            return Reply(raw=b"")
        if self.hangs_on and request.method == self.hangs_on:
            return Reply(hang=True)
        status = self.closed or (self.refuses if request.method != "GET" else None)
        if status is not None:
            return Reply(
                status, {"content-type": "application/json"}, json.dumps({"error": self.says}).encode()
            )
        if not request.route.startswith("/workers"):
            return Reply(200 if request.route in ("/health", "/readiness", "/liveness") else 404)
        if request.method != "GET":
            await asyncio.sleep(self.slow_s)
        found = await self.model.ask(request.method, request.route, request.body or None)
        return Reply(found.status or 500, {"content-type": "application/json"}, found.body)

    def restart(self, urls: Sequence[str], roles: dict[str, str]) -> None:
        """As from its command line: new ids, nothing of what the API was told."""
        given = self.model._given
        self.model.workers.clear()
        self.model._ids.clear()
        self.model.jobs.clear()
        self.model._given = given
        for url in urls:
            self.model.put(url, roles[url])


@dataclass
class Plant:
    folder: Path
    workers: list[StubWorker]
    routers: list[StubRouter]
    monitors: list[LoopMonitor] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "config.toml"

    @property
    def text(self) -> str:
        return self.path.read_text()

    @property
    def decode(self) -> list[StubWorker]:
        return [worker for worker in self.workers if worker.role == "decode"]

    @property
    def prefill(self) -> list[StubWorker]:
        return [worker for worker in self.workers if worker.role == "prefill"]

    @property
    def roles(self) -> dict[str, str]:
        return {worker.url: worker.role for worker in self.workers}

    def write(self, text: str) -> None:
        """As an editor does: a new file in its place."""
        new = self.folder / "config.toml.new"
        new.write_text(text)
        new.replace(self.path)

    @asynccontextmanager
    async def console(
        self, arming: Arming = ARMED, *, state: str = "state", keep_true: bool = False
    ) -> AsyncIterator[Console]:
        """A console over the cluster; its state folder is shared with others of the same name."""
        watched = watch_file(self.path)
        monitor = LoopMonitor(watched.targets, loaded=watched.loaded, window_s=10.0)
        await monitor.begin()
        self.monitors.append(monitor)
        operator = Operator(
            monitor,
            path=self.path,
            arming=arming,
            root=self.folder / state,
            keep_true=keep_true,
            clock=_Clock.time,
            ticks=asyncio.get_running_loop().time,
        )
        await asyncio.sleep(0)
        try:
            yield Console(self, monitor, operator)
        finally:
            operator.close()
            await asyncio.sleep(0)
            await monitor.end()


@dataclass
class Console:
    plant: Plant
    monitor: LoopMonitor
    operator: Operator

    @property
    def view(self) -> View:
        return self.operator.view()

    @property
    def log(self) -> tuple[LogEntry, ...]:
        return self.operator.log()

    @property
    def unusable(self) -> set[str]:
        return {worker.key for worker in self.monitor.latest().workers if worker.usable is False}

    async def plan(self, request: Request) -> Plan:
        return await asyncio.to_thread(self.operator.plan, request)

    async def start(self, request: Request, *typed: str, overrule: bool = False) -> Operation:
        return self.operator.start(await self.plan(request), typed=typed, overrule=overrule)

    async def do(self, request: Request, *typed: str, overrule: bool = False) -> Operation:
        """Plan, start, and wait until it has ended, or a drain waits."""
        return await self.settled(await self.start(request, *typed, overrule=overrule))

    async def settled(self, operation: Operation) -> Operation:
        if operation.ended:
            return operation
        return await self.shown(
            lambda one: (
                one.id == operation.id and (one.ended or one.phase in (Phase.DRAINING, Phase.DEADLINE))
            )
        )

    async def ended(self, operation: Operation) -> Operation:
        return await self.shown(lambda one: one.id == operation.id and one.ended)

    async def shown(self, holds: Callable[[Operation], bool]) -> Operation:
        """The first operation of the view of which this holds."""
        await self.until(lambda: any(map(holds, self.view.operations)))
        return next(filter(holds, self.view.operations))

    async def drain_of(self, worker: StubWorker, holds: Callable[[DrainProgress], bool]) -> DrainProgress:
        def found() -> DrainProgress | None:
            one = self.view.drain_of(worker.key)
            return one if one is not None and holds(one) else None

        await self.until(lambda: found() is not None)
        progress = found()
        assert progress is not None
        return progress

    async def until(self, check: Callable[[], bool]) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not check():
            if asyncio.get_running_loop().time() > deadline:
                told = [(o.plan.title, o.phase, o.outcome, o.words) for o in self.view.operations]
                raise AssertionError(f"it did not happen; {told}, {self.view.drains}, {self.view.notices}")
            await asyncio.sleep(_LOOK_S)


def config_text(routers: Sequence[StubServer], workers: Sequence[StubWorker], engine: str, more: str) -> str:
    urls = [server.url for server in routers]
    lines = ["# the cluster", "[server]", f'url = "{urls[0]}"', f'engine = "{engine}"']
    if len(urls) > 1:
        lines.append(f"replica_urls = {json.dumps(urls[1:])}")
    for role in ("prefill", "decode"):
        listed = ", ".join(f'"{worker.key}"' for worker in workers if worker.role == role)
        lines += ["", f"[{role}]", f"workers = [{listed}]", 'policy = "round_robin"']
        lines += ["cache_aware_threshold = 0.30  # tuned in May"] if role == "prefill" else []
    for worker in workers:
        if worker.role == "prefill":
            lines += ["", f'[prefill.worker."{worker.key}"]', "bootstrap_port = 8998"]
    return "\n".join([*lines, "", "[console]", "confirm_share = 1.0", more, ""])


@asynccontextmanager
async def plant(
    folder: Path,
    *,
    engine: str = "sglang-router",
    routers: int = 1,
    decode: int = 3,
    more: str = "",
    real: bool = False,
) -> AsyncIterator[Plant]:
    """Two prefill and ``decode`` decode workers behind ``routers`` routers, all in config.toml.

    ``more`` stands at the end of the file, in ``[console]`` at first. ``real``: in real time, with file
    events.
    """
    async with AsyncExitStack() as stack:
        _loop.append(asyncio.get_running_loop())
        stack.callback(_loop.pop)
        stack.enter_context(patch.object(monitor_module, "time", _Clock))
        if not real:
            stack.enter_context(patch.object(watch_module, "folder_events", _no_events))
        workers = [
            StubWorker("prefill"),
            StubWorker("prefill"),
            *(StubWorker("decode") for _ in range(decode)),
        ]
        for worker in workers:
            worker.port = (await stack.enter_async_context(StubServer(worker.answer))).port
        stubs: list[StubRouter] = []
        for number in range(routers):
            model = ModelRouter(engine)

            def answer(request: Asked, number: int = number) -> Any:
                return stubs[number].answer(request)

            server = await stack.enter_async_context(StubServer(answer))
            stubs.append(StubRouter(model, server, name=f"127.0.0.1:{server.port}"))
            for worker in workers:
                port = {"bootstrap_port": 8998} if worker.role == "prefill" else {}
                model.put(worker.url, worker.role, **port)
        (folder / "config.toml").write_text(config_text([s.server for s in stubs], workers, engine, more))
        assert load(folder / "config.toml").ok, load(folder / "config.toml").problems
        yield Plant(folder, workers, stubs)


@asynccontextmanager
async def embedded(cluster: Plant, *, follows: bool = True) -> AsyncIterator[Gateway]:
    """pdtop's own router in front of the cluster, in the place of the first one; it reads the file itself."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        old = cluster.routers[0]
        text = cluster.text.replace(f"http://{old.name}", url).replace(old.model.engine, "embedded")
        cluster.path.write_text(text)
        loaded = load(cluster.path)
        assert loaded.config is not None, loaded.problems
        watch = ConfigWatch(loaded, clock=loop.time, file_events=_no_events)
        gateway = Gateway(loaded.config, seed=1, exposed=False, watch=watch if follows else None)
        runner = web.AppRunner(gateway.app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await gateway.start()
            await web.SockSite(runner, sock).start()
            yield gateway
        finally:
            await runner.cleanup()
            await gateway.stop()


def done(operation: Operation) -> bool:
    return operation.outcome is Outcome.DONE
