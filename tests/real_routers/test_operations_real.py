"""Drains through the gate on the published routers: what is promised is what routers and workers do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdtop.operations.model import Drain, Outcome, Phase, Undrain, View
from pdtop.routers.detect import DIALECTS
from pdtop.simulator.worker import SimWorker
from tests.real_routers.launcher import EACH_ENGINE, Engine, Router
from tests.real_routers.operating import (
    Console,
    chat,
    figures,
    listed,
    operating,
    received,
    routed,
    traffic,
    work,
)
from tests.real_routers.test_real_routers import text_of
from tests.simulator.comparison import key
from tests.simulator.support import DECODE, PREFILL, client, workers

pytestmark = EACH_ENGINE

#: 128 tokens take 6.4 s on it, in 32 parts.
SLOW = replace(DECODE, stream_interval=4, decode=replace(DECODE.decode, step_s=0.05))
TOKENS = 128


async def test_a_drain_cuts_no_stream_and_lets_nothing_new_in(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, SLOW, SLOW) as running,
        routed(engine, running, tmp_path) as (router,),
        client() as session,
        operating(tmp_path / "config.toml") as console,
    ):
        worker, other = running[1:]
        spec = await marked(session, engine, router, worker)
        streams = [asyncio.create_task(chat(session, router, TOKENS)) for _ in range(40)]
        await console.until(lambda: work(worker) + work(other) == 40)
        long = work(worker)
        assert long >= 10
        async with traffic(session, router) as statuses:
            await console.grows(statuses)
            at_end: list[tuple[int, bool, int]] = []

            def look(view: View) -> None:
                if not at_end and any(one.ended for one in view.operations):
                    at_end.append((work(worker), worker.engines[0].idle, received(worker)))

            console.operator.subscribe(look)
            operation = await console.start(Drain((key(worker),), timeout_s=600.0))
            await console.in_phase(operation, Phase.DRAINING)
            await listed(session, router)  # what was under way when it was confirmed has arrived by now
            before, elsewhere = received(worker), received(other)
            first = await console.progress_of(worker, lambda one: one.left is not None)
            assert first.left is not None
            assert first.left >= long
            assert first.by not in ("", "config.toml")
            assert first.deadline == pytest.approx((first.since or 0.0) + 600.0)
            shown = [first.left]
            while not (ended := await console.operation(lambda one: one.id == operation.id)).ended:
                await console.polls(1)
                progress = console.progress(worker)
                shown += [progress.left] if progress is not None and progress.left is not None else []
            assert (ended.outcome, ended.words) == (Outcome.DONE, "drained: safe to stop")
            assert at_end == [(0, True, before)]
            assert received(worker) == before
            assert received(other) > elsewhere + 10
            assert shown == sorted(shown, reverse=True)
            answers = await asyncio.gather(*streams)
            assert [len(text_of(answer, True).split()) for answer in answers] == [TOKENS] * 40
            assert {answer.events[-1] for answer in answers} == {"[DONE]"}

            back = await console.run(Undrain((key(worker),)))
            assert back.outcome is Outcome.DONE, back
            assert spec_in(await listed(session, router), worker) == spec
            await console.until(lambda: received(worker) > before + 5)
            await all_readmitted(console, worker)
        assert set(statuses) == {200}
        figures(
            engine,
            no_new_work_s=console.seconds_to(ended, Phase.DRAINING),
            drained_s=console.seconds_to(ended, Phase.ENDED),
            back_s=console.seconds_to(back, Phase.ENDED),
        )


async def test_a_worker_brought_back_at_once_comes_back_for_good(engine: Engine, tmp_path: Path) -> None:
    """smg removes what it was told to remove 5 s later, also if it was registered again by then."""
    async with (
        workers(PREFILL, PREFILL, DECODE) as running,
        routed(engine, running, tmp_path) as (router,),
        client() as session,
        operating(tmp_path / "config.toml") as console,
        traffic(session, router) as statuses,
    ):
        worker = running[0]
        spec = await marked(session, engine, router, worker)
        assert spec["bootstrap_port"] == worker.bootstrap_port
        drain = await console.start(Drain((key(worker),)))
        await console.in_phase(drain, Phase.DRAINING)
        back = await console.run(Undrain((key(worker),)))
        assert back.outcome is Outcome.DONE, back
        drain = await console.ended(drain.id)
        assert (drain.outcome, console.progress(worker)) in (
            (Outcome.CANCELLED, None),
            (Outcome.DONE, None),  # it was empty in the seconds that smg had to be waited for
        )
        there = await listed(session, router)
        assert spec_in(there, worker) == spec
        seen = received(worker)
        await console.until(lambda: received(worker) > seen + 5)
        await all_readmitted(console, worker)
        await console.polls(10)  # a removal that was still due would have been carried out by then
        assert (await listed(session, router))[worker.url]["id"] == there[worker.url]["id"]
        await console.grows(statuses)
        assert set(statuses) == {200}
        figures(engine, back_at_once_s=console.seconds_to(back, Phase.ENDED))


async def test_the_last_usable_worker_stays_unless_its_name_is_typed(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        routed(engine, running, tmp_path) as (router,),
        client() as session,
        operating(tmp_path / "config.toml") as console,
    ):
        worker = running[1]
        before, file = await listed(session, router), (tmp_path / "config.toml").read_bytes()
        for typed in ((), ("yes",)):
            refused = await console.run(Drain((key(worker),)), *typed)
            assert refused.outcome is Outcome.REFUSED
            assert f"{key(worker)} is the last usable decode worker" in refused.words
            assert f"type {key(worker)}" in refused.next_step
        assert await listed(session, router) == before
        assert (tmp_path / "config.toml").read_bytes() == file
        assert [(entry.outcome, entry.calls) for entry in console.operator.log()] == [("refused", ())] * 2

        drained = await console.run(Drain((key(worker),)), key(worker))
        assert drained.outcome is Outcome.DONE, drained
        there = await listed(session, router)
        assert there.get(worker.url, {"status": "draining"})["status"] == "draining"
        assert (await chat(session, router, 2)).status == 503


async def marked(
    session: aiohttp.ClientSession, engine: Engine, router: Router, worker: SimWorker
) -> dict[str, Any]:
    """Give the worker a priority and a label of its own; what the router then says of it."""
    method = DIALECTS[engine.name].powers.update_method
    assert method is not None
    url = f"{router.url}/workers/{(await listed(session, router))[worker.url]['id']}"
    fields = {"priority": 7, "cost": 2.5, "labels": {"zone": "b"}}
    async with session.request(method, url, json=fields) as answer:
        assert answer.status == 202
    spec = spec_in(await listed(session, router), worker)
    async with asyncio.timeout(10.0):
        while spec["zone"] != "b":
            spec = spec_in(await listed(session, router), worker)
    assert (spec["priority"], spec["cost"]) == (7, 2.5)
    return spec


def spec_in(there: dict[str, Any], worker: SimWorker) -> dict[str, Any]:
    """What has to be as before when it is back."""
    entry = there[worker.url]
    names = ("worker_type", "bootstrap_port", "priority", "cost")
    labels = entry.get("metadata") or entry.get("labels") or {}
    return {**{name: entry.get(name) for name in names}, "zone": labels.get("zone")}


async def all_readmitted(console: Console, worker: SimWorker) -> None:
    def states() -> set[str]:
        found = console.operator.view().readmissions
        return {state for one in found if one.worker == key(worker) for state, _ in one.checks}

    await console.until(lambda: states() == {"ok"})
