"""A console beside a service: it writes config.toml, the service tells the routers, and it sees that done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pdtop.cluster.model import Role
from pdtop.operations.arming import Arming
from pdtop.operations.beside import SERVICE_S, change_found
from pdtop.operations.lock import BESIDE
from pdtop.operations.model import (
    AddWorker,
    Apply,
    Drain,
    Outcome,
    Phase,
    RemoveWorker,
    Restart,
    SetValue,
    SetWeight,
    Undo,
    Undrain,
)
from tests.operations.plant import Console, Plant, done, plant, virtual

READ_ONLY = Arming(True)
THRESHOLD = SetValue(("prefill", "cache_aware_threshold"), "0.45")
ENDED = "service has ended, so that nobody tells the routers; W arms this console to do it"


@asynccontextmanager
async def served(folder: Path, **how: int | str) -> AsyncIterator[tuple[Plant, Console, Console]]:
    """A cluster, its service and a console that is armed beside it."""
    async with (
        plant(folder, **how) as cluster,  # type: ignore[arg-type]
        cluster.console(keep_true=True) as service,
        cluster.console() as console,
    ):
        yield cluster, service, console


def sent(console: Console) -> list[str]:
    return [call.method for one in console.view.operations for at in one.routers for call in at.calls]


@virtual
async def test_a_console_is_armed_beside_a_service_and_says_so(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, service, console):
        holder = console.view.holder
        assert holder is not None
        assert holder.service
        assert service.view.holder is None
        told = f"{holder.user}@{holder.host}'s service tells the routers"
        assert (console.view.read_only, console.view.armed_by) == (False, f"--write; {told}")
        plan = await console.plan(THRESHOLD)
        assert ("Beside", f"{told}; this waits to see it done") in plan.rows
        assert plan.refusal is None
        await asyncio.sleep(10.0)
        assert (console.view.read_only, console.view.holder) == (False, holder)


@virtual
async def test_drain_and_undrain_are_written_and_the_service_tells_the_routers(tmp_path: Path) -> None:
    async with served(tmp_path, routers=2) as (cluster, service, console):
        worker = cluster.decode[0]
        worker.running = 3
        drain = await console.do(Drain((worker.key,)))
        assert (drain.phase, [one.outcome for one in drain.routers]) == (Phase.DRAINING, [Outcome.DONE] * 2)
        assert all(worker.url not in router.urls for router in cluster.routers)
        worker.running = 0
        assert done(await console.ended(drain))
        back = await console.do(Undrain((worker.key,)))
        assert (back.outcome, back.words) == (Outcome.DONE, "done at 2 routers")
        assert all(worker.url in router.urls for router in cluster.routers)
        assert sent(console) == []
        told = [one for one in service.view.operations if one.source == "config.toml edited"]
        entry = console.log[-1]
        assert [one.outcome for one in told] == [Outcome.DONE, Outcome.DONE]
        assert told[0].plan.title.startswith(f"config.toml edited by {entry.user}@{entry.host}: decode.")
        logged = [(one.operation, one.source, one.outcome) for one in reversed(console.log)]
        assert "drained" in [operation for operation, _, _ in logged]
        logged = [one for one in logged if one[0] != "drained"]  # by whichever saw it first
        assert logged == [
            ("drain", "console", "done"),
            ("apply", "config.toml edited", "done"),
            ("undrain", "console", "done"),
            ("apply", "config.toml edited", "done"),
        ]


@virtual
async def test_workers_are_added_moved_to_another_port_and_removed(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, _, console):
        (router,) = cluster.routers
        new = "127.0.0.1:9"
        assert done(await console.do(AddWorker(Role.DECODE, new)))
        assert f"http://{new}" in router.urls
        assert done(await console.do(RemoveWorker(new)))
        assert f"http://{new}" not in router.urls
        assert done(await console.do(Apply())) or (await console.plan(Apply())).nothing_to_do
        assert sent(console) == []


@virtual
async def test_what_counts_only_after_a_restart_is_said_and_can_be_undone(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, service, console):
        before = cluster.text
        written = await console.do(SetValue(("decode", "policy"), '"random"'))
        assert (written.outcome, written.next_step) == (
            Outcome.ACCEPTED_NOT_APPLIED,
            "c: the restart plan",
        )
        assert '"random"' in cluster.text
        await service.until(lambda: service.view.restart is not None)
        plan = await console.plan(Restart())
        assert plan.guards[0].kind == "locked"
        assert plan.guards[0].text.endswith("'s service tells the routers")
        assert "by its own means" in plan.guards[0].to_change
        assert (await console.do(Restart())).outcome is Outcome.REFUSED
        await console.do(Undo())
        assert cluster.text == before
        prune = await console.plan(Apply(prune=True))
        assert prune.guards[0].text.startswith("--prune is only for who tells the routers: ")


@virtual
async def test_another_engine_and_health_settings(tmp_path: Path) -> None:
    async with served(tmp_path, engine="smg") as (cluster, _, console):
        worker = cluster.decode[0]
        health = await console.do(SetValue(("health", "interval_secs"), "7"))
        assert health.words == "the router shows what the file says; health settings cannot be seen there"
        drain = await console.do(Drain((worker.key,)))
        assert [one.outcome for one in drain.routers] == [Outcome.DONE]
        assert done(await console.ended(drain))
        assert done(await console.do(Undrain((worker.key,))))
        assert worker.url in cluster.routers[0].urls


@virtual
async def test_what_the_service_does_not_bring_about_is_accepted_not_applied(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, _, console):
        cluster.routers[0].refuses = 403
        worker = cluster.decode[0]
        drain = await console.do(Drain((worker.key,)))
        assert drain.words == (
            f"the service has not brought it to the file after {SERVICE_S:g} s: {worker.key} is still there"
        )
        (at,) = drain.routers
        assert at.outcome is Outcome.ACCEPTED_NOT_APPLIED
        assert at.fix == "see whether the service runs, its journal, and pdtop log"
        assert "drain = true" in cluster.text
        cluster.routers[0].refuses = None
        await console.until(lambda: worker.url not in cluster.routers[0].urls)


@virtual
async def test_a_router_that_does_not_answer_is_told_by_the_service_later(tmp_path: Path) -> None:
    async with served(tmp_path, routers=2) as (cluster, _, console):
        second = cluster.routers[1]
        second.down = True
        worker = cluster.decode[0]
        drain = await console.do(Drain((worker.key,)))
        assert [one.outcome for one in drain.routers] == [Outcome.DONE, Outcome.ACCEPTED_NOT_APPLIED]
        second.down = False
        await console.until(lambda: worker.url not in second.urls)
        assert sent(console) == []


@virtual
async def test_the_word_of_who_drains_the_last_of_a_pool_counts_for_the_service(tmp_path: Path) -> None:
    async with served(tmp_path, decode=1) as (cluster, service, console):
        (worker,) = cluster.decode
        plan = await console.plan(Drain((worker.key,)))
        assert plan.overrides
        drain = await console.settled(console.operator.start(plan, typed=plan.overrides))
        assert [one.outcome for one in drain.routers] == [Outcome.DONE]
        assert worker.url not in cluster.routers[0].urls
        await console.do(Undrain((worker.key,)))
        await asyncio.sleep(5.0)
        drained = f'[decode.worker."{worker.key}"]\ndrain = true\n\n[console]'
        cluster.write(cluster.text.replace("[console]", drained))
        held = await service.shown(lambda one: one.ended and one.outcome is Outcome.REFUSED)
        assert held.plan.title.startswith("config.toml edited: ")
        assert "last usable" in held.words


@virtual
async def test_when_the_service_ends_the_console_says_so_and_acts_when_armed_again(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console(READ_ONLY) as console:
        async with cluster.console(keep_true=True):
            await console.until(lambda: console.view.holder is not None)
            assert console.operator.arm() == ""
            assert done(await console.do(SetWeight(cluster.decode[0].key, 0.5))) or cluster.text.count("0.5")
            plan = await console.plan(Drain((cluster.decode[0].key,)))
        refused = console.operator.start(plan)
        assert (refused.outcome, refused.words) == (
            Outcome.REFUSED,
            "the service that told the routers has ended",
        )
        await console.until(lambda: console.view.read_only)
        assert console.view.notices[-1].endswith(ENDED)
        assert (console.view.holder, console.view.armed_by) == (None, "")
        assert console.operator.arm() == ""
        assert (console.view.read_only, console.view.armed_by) == (False, "this console")
        drain = await console.do(Drain((cluster.decode[0].key,)))
        assert "DELETE" in [call.method for call in drain.routers[0].calls]


@virtual
async def test_a_service_that_ends_during_a_change(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console(READ_ONLY) as console:
        async with cluster.console(keep_true=True):
            cluster.routers[0].hangs_on = "DELETE"
            assert console.operator.arm() == ""
            drain = await console.start(Drain((cluster.decode[0].key,)))
            await console.shown(lambda one: one.id == drain.id and one.phase is Phase.APPLYING)
        drain = await console.settled(drain)
        assert drain.routers[0].words.startswith("the service has ended before it brought it to the file: ")
        assert drain.routers[0].outcome is Outcome.ACCEPTED_NOT_APPLIED
        assert console.view.read_only
        assert sent(console) == []


@virtual
async def test_one_console_at_a_time_writes_beside_a_service(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, _, first), cluster.console() as second:
        holder = second.view.holder
        assert holder is not None
        assert not holder.service
        assert second.view.read_only
        assert second.view.notices == (f"read-only all the same: {holder.text} operates on this cluster",)
        plan = await second.plan(THRESHOLD)
        assert (plan.guards[0].kind, plan.guards[0].text) == (
            "locked",
            f"{holder.text} operates on this cluster",
        )
        first.operator.disarm()
        assert second.operator.arm() == ""
        assert second.view.holder is not None
        assert second.view.holder.service
        assert first.operator.arm().endswith("operates on this cluster")
        assert done(await second.do(THRESHOLD))
        assert "0.45" in cluster.text


@virtual
async def test_a_second_service_is_refused_and_a_console_keeps_a_service_out(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster:
        async with cluster.console(keep_true=True), cluster.console(keep_true=True) as second:
            assert second.view.read_only
            assert second.operator.arm().endswith("'s service tells the routers")
            assert (await second.plan(Apply())).guards[0].kind == "locked"
        async with cluster.console() as console, cluster.console(keep_true=True) as late:
            assert late.operator.arm().endswith("operates on this cluster")
            assert not (late.plant.folder / BESIDE).exists()
            console.operator.disarm()
            assert late.operator.arm() == ""
            assert console.operator.arm() == ""
            assert "'s service tells the routers" in console.view.armed_by


@virtual
async def test_an_old_change_is_not_the_one_that_was_found(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        await console.do(THRESHOLD)
        (entry,) = console.log
        assert entry.change is not None
        assert change_found(console.log, entry.change.digest_after, entry.at + 5.0) == entry
        assert change_found(console.log, entry.change.digest_after, entry.at + 500.0) is None
        assert change_found(console.log, "another", entry.at) is None
        assert change_found((), "another", entry.at) is None
