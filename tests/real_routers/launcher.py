"""Starts a published router in front of simulated workers and ends it again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from pdtop.simulator.worker import SimWorker
from tests.simulator.support import client, get

#: Python of the venv that has the routers; see tests/all.sh.
PYTHON = Path(
    os.environ.get("PDTOP_ROUTERS_PYTHON")
    or Path(__file__).parent.parent.parent / ".venv-routers" / "bin" / "python"
)

_READY_S = 30.0


@dataclass(frozen=True, slots=True)
class Engine:
    """A published router. ``name`` is pdtop's word for it."""

    name: str
    module: str
    version: str

    @property
    def installed(self) -> bool:
        package = self.module.partition(".")[0]
        return any(PYTHON.parent.parent.glob(f"lib/python*/site-packages/{package}/__init__.py"))


SGLANG_ROUTER = Engine("sglang-router", "sglang_router.launch_router", "0.3.2")
SMG = Engine("smg", "smg.launch_router", "1.13.0")

#: For a module of tests that each of them has to pass.
EACH_ENGINE = [
    pytest.mark.real_router,
    pytest.mark.parametrize(
        "engine",
        [
            pytest.param(
                engine,
                id=engine.name,
                marks=pytest.mark.skipif(not engine.installed, reason=f"{engine.name} is not installed"),
            )
            for engine in (SGLANG_ROUTER, SMG)
        ],
    ),
]


@dataclass(frozen=True, slots=True)
class Launched:
    url: str
    metrics_url: str


class Router:
    """One router on ports of its own: it can be started, killed, and started again in the same place.

    ``args`` are further flags. Its output goes to ``log``.
    """

    def __init__(
        self,
        engine: Engine,
        workers: Sequence[SimWorker],
        log: Path,
        policy: str = "round_robin",
        *,
        args: Sequence[str] = (),
    ) -> None:
        port, metrics = _free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.metrics_url = f"http://127.0.0.1:{metrics}/metrics"
        self._log = log
        self._workers = len(workers)
        self._process: asyncio.subprocess.Process | None = None
        words = ["--host", "127.0.0.1", "--port", str(port), "--pd-disaggregation", "--policy", policy]
        words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
        for worker in workers:
            if worker.spec.role == "prefill":
                words += ["--prefill", worker.url, str(worker.bootstrap_port)]
            else:
                words += ["--decode", worker.url]
        self._command = [str(PYTHON), "-m", engine.module, *words, *args]

    async def start(self, expected: int | None = None) -> None:
        """Start it; returns when it is ready with all its workers, or with as many as are ``expected``."""
        with self._log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdout=output, stderr=output, start_new_session=True
            )
        self._process = process
        async with client() as session:
            ready = await _ready(session, self.url, self._workers if expected is None else expected, process)
        assert ready, f"the router did not become ready: {_tail(self._log)}"

    async def kill(self) -> None:
        """End it at once (SIGKILL); no harm if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@asynccontextmanager
async def launched(
    engine: Engine,
    workers: Sequence[SimWorker],
    log: Path,
    policy: str = "round_robin",
    *,
    args: Sequence[str] = (),
    expected: int | None = None,
) -> AsyncIterator[Launched]:
    """The router, ready with all ``workers``; its output goes to ``log``.

    ``args`` are further flags; with ``expected`` it is ready with that many workers, whoever named them.
    """
    router = Router(engine, workers, log, policy, args=args)
    try:
        await router.start(expected)
        yield Launched(router.url, router.metrics_url)
    finally:
        await router.kill()


async def _ready(
    session: aiohttp.ClientSession, url: str, workers: int, process: asyncio.subprocess.Process
) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(_READY_S):
            while process.returncode is None:
                with suppress(aiohttp.ClientError):
                    answer = await get(session, url + "/readiness")
                    if answer.status == 200 and answer.json["healthy_workers"] == workers:
                        return True
                await asyncio.sleep(0.05)
    return False


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _free_ports(count: int) -> list[int]:
    """Ports that are free now; all are held until all are known, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
