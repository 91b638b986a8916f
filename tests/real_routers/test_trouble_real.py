"""The gate when others edit the file, routers restart or do not answer, or a key is wrong; real routers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pdtop.operations.model import Drain, DrainState, Operation, Outcome, Phase
from tests.real_routers.launcher import EACH_ENGINE, Engine
from tests.real_routers.operating import (
    Console,
    figures,
    held,
    listed,
    operating,
    received,
    routed,
    traffic,
    work,
)
from tests.simulator.comparison import key
from tests.simulator.support import DECODE, PREFILL, client, workers

pytestmark = EACH_ENGINE

API_KEY = "sk-test-router-key"
ADMIN_KEY = "sk-test-admin-key"
USER_KEY = "sk-test-user-key"
WRONG_KEY = "sk-test-wrong-key"
SLOW = replace(DECODE, stream_interval=16, decode=replace(DECODE.decode, step_s=0.05))


async def test_an_edit_by_hand_is_carried_out(engine: Engine, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    async with (
        workers(PREFILL, DECODE, DECODE) as running,
        routed(engine, running[:2], tmp_path) as (router,),
        client() as session,
        operating(config) as console,
    ):
        stays, comes = running[1:]
        added, added_s = await sed(console, config, f's/"{key(stays)}"/"{key(stays)}", "{key(comes)}"/')
        assert key(comes) in added.plan.title
        there = (await listed(session, router))[comes.url]
        assert (there["worker_type"], there["is_healthy"]) == ("decode", True)
        async with traffic(session, router):
            await console.until(lambda: received(comes) > 5)

        removed, removed_s = await sed(console, config, f's/, "{key(comes)}"//')
        assert key(comes) in removed.plan.title
        there = (await listed(session, router)).get(comes.url, {"status": "draining"})
        assert there["status"] == "draining"
        before = received(comes)
        async with traffic(session, router) as statuses:
            await console.grows(statuses)
        assert received(comes) == before
        figures(engine, edit_to_added_s=added_s, edit_to_removed_s=removed_s)


async def sed(console: Console, config: Path, script: str) -> tuple[Operation, float]:
    """Edit the file as people do; what the console made of it, within few polls, and after how long."""
    known = {one.id for one in console.operator.view().operations}
    first = console.monitor.latest().number
    process = await asyncio.create_subprocess_exec("sed", "-i", script, str(config))
    assert await process.wait() == 0
    edited = time.monotonic()
    found = await console.operation(lambda one: one.id not in known and one.ended)
    assert console.monitor.latest().number - first <= 30
    assert (found.source, found.outcome) == ("config.toml edited", Outcome.DONE), found
    return found, console.ended_at(found) - edited


async def test_a_drain_outlives_a_restart_of_the_router(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, SLOW, DECODE) as running,
        routed(engine, running, tmp_path) as (router,),
        client() as session,
        operating(tmp_path / "config.toml") as console,
    ):
        worker = running[1]
        async with held(session, running[0], worker, 5):
            drain = await console.start(Drain((key(worker),)))
            await console.in_phase(drain, Phase.DRAINING)
            await router.kill()
            await router.start()
            up = time.monotonic()
            again = await console.operation(lambda one: one.source != "console" and one.ended)
            figures(engine, asserted_again_s=console.ended_at(again) - up)
            assert again.outcome is Outcome.DONE, again
            there = (await listed(session, router)).get(worker.url, {"status": "draining"})
            assert there["status"] == "draining"
            before = received(worker)
            async with traffic(session, router) as statuses:
                await console.grows(statuses)
            assert (received(worker), set(statuses)) == (before, {200})
            progress = await console.progress_of(worker, lambda one: one.state is DrainState.DRAINING)
            assert (progress.left, progress.safe_to_stop) == (5, False)
            assert not (await console.operation(lambda one: one.id == drain.id)).ended
        ended = await console.ended(drain.id)
        assert (ended.outcome, ended.words, work(worker)) == (Outcome.DONE, "drained: safe to stop", 0)


async def test_a_router_that_does_not_answer_keeps_a_drain_open(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, DECODE, DECODE) as running,
        routed(engine, running, tmp_path, replicas=1) as (router, absent),
        client() as session,
        operating(tmp_path / "config.toml") as console,
    ):
        worker = running[1]
        name = console.monitor.targets.routers[1].name
        drain = await console.start(Drain((key(worker),)))
        await console.in_phase(drain, Phase.DRAINING)
        there = (await listed(session, router)).get(worker.url, {"status": "draining"})
        assert there["status"] == "draining"
        progress = await console.progress_of(worker, lambda one: one.left == 0)
        assert (progress.state, progress.still_on) == (DrainState.PARTLY_DRAINED, (name,))
        assert not progress.safe_to_stop
        await console.polls(10)  # empty for long
        assert console.progress(worker) == replace(progress, eta_s=None)
        waiting = await console.operation(lambda one: one.id == drain.id)
        assert (waiting.phase, name in waiting.words) == (Phase.DRAINING, True), waiting

        await absent.start()
        up = time.monotonic()
        told = await console.operation(lambda one: one.source == "reassert" and one.ended)
        assert told.outcome is Outcome.DONE, told
        ended = await console.ended(drain.id)
        assert (ended.outcome, ended.words) == (Outcome.DONE, "drained: safe to stop")
        figures(
            engine, told_when_up_s=console.ended_at(told) - up, then_drained_s=console.ended_at(ended) - up
        )
        for one in (router, absent):
            there = (await listed(session, one)).get(worker.url, {"status": "draining"})
            assert there["status"] == "draining"
        before = received(worker)
        async with traffic(session, router, absent) as statuses:
            await console.grows(statuses)
        assert (received(worker), set(statuses)) == (before, {200})


@pytest.mark.parametrize(
    ("admin", "given", "status", "fix"),
    [
        (False, WRONG_KEY, 401, "the key in $PDTOP_ADMIN_KEY is not the one it wants"),
        (True, API_KEY, 401, "put one into $PDTOP_ADMIN_KEY"),
        (True, USER_KEY, 403, "$PDTOP_ADMIN_KEY"),  # smg lets it read the list, and then refuses
    ],
    ids=["wrong", "not the admin's", "not an admin"],
)
async def test_a_wrong_key_leaves_nothing_half_done(
    engine: Engine,
    admin: bool,
    given: str,
    status: int,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PDTOP_API_KEY", API_KEY)
    monkeypatch.setenv("PDTOP_ADMIN_KEY", given)
    config = tmp_path / "config.toml"
    args = ["--api-key", API_KEY]
    if admin:
        args += ["--control-plane-api-keys", f"ops:ops:admin:{ADMIN_KEY}", f"eve:eve:user:{USER_KEY}"]
    async with (
        workers(PREFILL, DECODE, DECODE) as running,
        routed(engine, running, tmp_path, *args) as (router,),
        client() as session,
        operating(config) as console,
    ):
        before, worker = config.read_bytes(), running[1]
        refused = await console.run(Drain((key(worker),)))
        assert refused.outcome is Outcome.REFUSED, refused
        assert str(status) in refused.words
        assert fix in refused.next_step
        assert config.read_bytes() == before
        assert console.progress(worker) is None
        right = ADMIN_KEY if admin else API_KEY
        there = await listed(session, router, right)
        assert there.keys() == {one.url for one in running}
        (entry,) = console.operator.log()
        assert entry.outcome == "refused"
        assert str(status) in entry.words
        assert all(secret not in repr(console.operator.log()) for secret in (given, API_KEY))
