"""Operations through the gate on the published routers: what is promised is what routers and workers do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from pdtop.cluster.model import Health
from pdtop.operations.model import Drain, DrainState, Outcome, Phase, Undrain, View
from pdtop.simulator.worker import SimWorker
from tests.real_routers.launcher import SGLANG_ROUTER, SMG, Engine, Router
from tests.real_routers.operating import Console, chat, listed, operating, received, work, write_config
from tests.real_routers.test_real_routers import text_of
from tests.simulator.comparison import key
from tests.simulator.support import DECODE, PREFILL, both, client, workers

pytestmark = [
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

#: 128 tokens take 6.4 s on it, in 32 parts.
SLOW = replace(DECODE, stream_interval=4, decode=replace(DECODE.decode, step_s=0.05))
TOKENS = 128


@asynccontextmanager
async def routed(
    engine: Engine, running: list[SimWorker], folder: Path, *args: str, replicas: int = 0
) -> AsyncIterator[list[Router]]:
    """A started router, and others that are not; their config.toml is in ``folder``."""
    routers = [Router(engine, running, folder / f"log{n}", args=args) for n in range(1 + replicas)]
    write_config(folder / "config.toml", routers, running)
    try:
        await routers[0].start()
        yield routers
    finally:
        for router in routers:
            await router.kill()


@asynccontextmanager
async def traffic(session: aiohttp.ClientSession, router: Router) -> AsyncIterator[list[int]]:
    """Short chats one after the other, three at a time, each with a text of its own; their statuses."""
    statuses: list[int] = []

    async def ask(number: int) -> None:
        for count in range(1_000_000):
            answer = await chat(session, router, 2, text=f"{number} {count} " + "x" * 400)
            statuses.append(answer.status)

    tasks = [asyncio.create_task(ask(number)) for number in range(3)]
    try:
        yield statuses
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results


def figures(engine: Engine, **seconds: float) -> None:
    """Measured, not asserted: shown by ``pytest -s``."""
    print(engine.name, *(f"{name}={value:.2f}" for name, value in seconds.items()))


async def grown(console: Console, statuses: list[int], by: int) -> None:
    wanted = len(statuses) + by
    await console.until(lambda: len(statuses) >= wanted)


async def test_a_drain_cuts_no_stream_and_lets_nothing_new_in(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, SLOW, SLOW) as running,
        routed(engine, running, tmp_path) as (router,),
        client() as session,
        operating(tmp_path / "config.toml") as console,
    ):
        worker, other = running[1:]
        streams = [asyncio.create_task(chat(session, router, TOKENS)) for _ in range(40)]
        await console.until(lambda: work(worker) == 20)
        async with traffic(session, router) as statuses:
            await grown(console, statuses, 10)
            at_end: list[tuple[int, bool, int]] = []

            def look(view: View) -> None:
                for one in view.operations:
                    if one.ended and not at_end:
                        at_end.append((work(worker), worker.engines[0].idle, received(worker)))

            console.operator.subscribe(look)
            operation = await console.start(Drain((key(worker),)))
            await console.in_phase(operation, Phase.DRAINING)
            await listed(session, router)  # what was on its way when it was confirmed has arrived by now
            before, left = received(worker), work(worker)
            assert left >= 20
            shown = [await console.progress_of(worker, lambda one: one.left is not None)]
            assert shown[0].left is not None and shown[0].left >= 20
            elsewhere = received(other)
            while not (ended := await console.operation(lambda one: one.id == operation.id)).ended:
                await console.polls(1)
                if (progress := console.progress(worker)) is not None:
                    shown.append(progress)
        assert (ended.outcome, ended.words) == (Outcome.DONE, "drained: safe to stop")
        assert at_end == [(0, True, before)]
        assert received(worker) == before
        assert received(other) > elsewhere + 10
        assert set(statuses) == {200}
        answers = await asyncio.gather(*streams)
        assert [len(text_of(answer, True).split()) for answer in answers] == [TOKENS] * 40
        assert {answer.events[-1] for answer in answers} == {"[DONE]"}
        numbers = [one.left for one in shown if one.left is not None]
        assert numbers == sorted(numbers, reverse=True)
        figures(
            engine,
            no_new_work_s=console.seconds_to(ended, Phase.DRAINING),
            drained_s=console.seconds_to(ended, Phase.ENDED),
        )
