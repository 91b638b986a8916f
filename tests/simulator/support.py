"""Simulated workers inside the test's own process, fast enough for a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from pdtop.simulator.decode import DecodeModel
from pdtop.simulator.engine import LinkModel
from pdtop.simulator.prefill import PrefillModel
from pdtop.simulator.spec import WorkerSpec
from pdtop.simulator.worker import SimWorker

FAST_PREFILL = PrefillModel(
    tokens_per_s=200_000.0, overhead_s=0.001, kv_bytes_per_token=1024, link=LinkModel(setup_s=0.0005)
)
FAST_DECODE = DecodeModel(step_s=0.002, step_per_request_s=0.0, step_per_kilotoken_s=0.0)

_PATIENCE_S = 10.0  # ends a wait that would be a failure; a good one takes milliseconds
_LOOK_S = 0.005

PREFILL = WorkerSpec(role="prefill", prefill=FAST_PREFILL, health_s=0.01, health_timeout_s=0.05)
DECODE = WorkerSpec(role="decode", decode=FAST_DECODE, health_s=0.01, health_timeout_s=0.05)


@asynccontextmanager
async def workers(*specs: WorkerSpec) -> AsyncIterator[list[SimWorker]]:
    running = [SimWorker(spec) for spec in specs]
    try:
        for worker in running:
            await worker.start()
        yield running
    finally:
        for worker in running:
            await worker.stop()


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    plain = {"Accept-Encoding": "identity"}
    async with aiohttp.ClientSession(auto_decompress=False, headers=plain) as session:
        yield session


@dataclass(slots=True)
class Answer:
    """One HTTP answer, read to its end."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of each stream event; ``[DONE]`` as text."""
        parts = [p.removeprefix("data: ") for p in self.body.decode().split("\n\n") if p]
        return [p if p == "[DONE]" else json.loads(p) for p in parts]


async def get(session: aiohttp.ClientSession, url: str, **headers: str) -> Answer:
    wanted = {name.replace("_", "-"): value for name, value in headers.items()}
    async with session.get(url, headers=wanted) as answer:
        return Answer(answer.status, await answer.read(), dict(answer.headers))


async def post(session: aiohttp.ClientSession, url: str, body: object) -> Answer:
    async with session.post(url, json=body) as answer:
        return Answer(answer.status, await answer.read(), dict(answer.headers))


async def both(
    session: aiohttp.ClientSession, prefill: SimWorker, decode: SimWorker, path: str, body: dict[str, Any]
) -> tuple[Answer, Answer]:
    """One request to both workers, as a router sends it."""
    place = {"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.bootstrap_port}
    whole = {"bootstrap_room": 7, **place, **body}
    p, d = await asyncio.gather(
        post(session, prefill.url + path, whole), post(session, decode.url + path, whole)
    )
    return p, d


async def until(session: aiohttp.ClientSession, worker: SimWorker, name: str, value: int) -> None:
    """Return when a gauge of the worker's truth, added over its ranks, is ``value``."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            truth = (await get(session, worker.url + "/truth")).json
            if sum(rank[name] for rank in truth["ranks"]) == value:
                return
            await asyncio.sleep(_LOOK_S)


async def eventually(check: Callable[[], bool]) -> None:
    """Return when ``check`` holds."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            if check():
                return
            await asyncio.sleep(_LOOK_S)
