"""The life of a drain: deadline and its answers, a new console, workers that come back by themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pdtop.operations.arming import Arming
from pdtop.operations.model import Choice, Drain, DrainState, Outcome, Phase, Undrain
from tests.operations.plant import EPOCH, Console, done, plant, virtual


async def chosen(console: Console, operation_id: str, choice: Choice) -> None:
    console.operator.choose(operation_id, choice)
    await asyncio.sleep(0.01)


@virtual
async def test_a_deadline_aborts_nothing_and_asks(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker = cluster.decode[0]
        worker.running = 4
        operation = await console.do(Drain((worker.key,), timeout_s=20.0))
        assert operation.choices == (Choice.CANCEL,)
        late = await console.shown(lambda one: one.phase is Phase.DEADLINE)
        assert late.choices == (Choice.WAIT, Choice.STOP_ANYWAY, Choice.CANCEL)
        assert late.words.startswith("the deadline has passed; nothing was aborted; ")
        assert "4 left" in late.words
        assert "drain = true" in cluster.text
        await asyncio.sleep(60.0)  # nobody answers
        await chosen(console, operation.id, Choice.WAIT)
        assert (await console.shown(lambda one: one.id == operation.id)).phase is Phase.DRAINING
        await asyncio.sleep(10.0)
        assert (await console.shown(lambda one: one.id == operation.id)).phase is Phase.DRAINING
        await console.shown(lambda one: one.phase is Phase.DEADLINE)
        worker.running = 0
        assert done(await console.ended(operation))


@virtual
async def test_stopped_anyway_is_told_with_what_is_cut(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster:
        worker = cluster.decode[0]
        worker.running = 4
        async with cluster.console() as console:
            operation = await console.do(Drain((worker.key,), timeout_s=5.0))
            await console.shown(lambda one: one.phase is Phase.DEADLINE)
            await chosen(console, operation.id, Choice.STOP_ANYWAY)
            ended = await console.ended(operation)
            assert (ended.outcome, ended.words) == (
                Outcome.TIMED_OUT,
                "not waited for any longer: 4 left will be cut when it is stopped",
            )
            assert (console.log[0].operation, console.log[0].outcome) == ("drain let go", "timed out")
            await asyncio.sleep(20.0)
            assert [one.id for one in console.view.operations] == [operation.id]
        async with cluster.console() as later:
            await asyncio.sleep(20.0)
            assert later.view.operations == ()
            assert [one.worker for one in later.view.drains] == [worker.key]


@virtual
async def test_cancelling_brings_the_worker_back(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, before = cluster.decode[0], cluster.text
        worker.running = 4
        operation = await console.do(Drain((worker.key,)))
        await chosen(console, operation.id, Choice.CANCEL)
        assert (await console.ended(operation)).outcome is Outcome.CANCELLED
        back = await console.shown(lambda one: isinstance(one.plan.request, Undrain) and one.ended)
        assert done(back)
        assert cluster.text == before
        assert worker.url in cluster.routers[0].urls
        await chosen(console, operation.id, Choice.STOP_ANYWAY)  # too late
        assert (await console.ended(operation)).outcome is Outcome.CANCELLED


@virtual
async def test_what_was_drained_and_serves_again_is_not_called_safe_to_stop(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker = cluster.decode[0]
        operation = await console.do(Drain((worker.key,)))
        assert (await console.ended(operation)).words == "drained: safe to stop"
        assert done(await console.do(Undrain((worker.key,))))
        since = await console.shown(lambda one: one.id == operation.id and not one.next_step)
        assert (since.outcome, since.words) == (
            Outcome.DONE,
            "was drained; no longer drained in config.toml",
        )


@virtual
async def test_a_new_console_takes_the_watch_up(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster:
        worker = cluster.decode[0]
        worker.running = 4
        async with cluster.console() as first:
            operation = await first.do(Drain((worker.key,)))
            entry = first.log[0]
        await asyncio.sleep(50.0)
        async with cluster.console(Arming(True)) as watcher:
            progress = await watcher.drain_of(worker, lambda one: one.left == 4)
            assert (progress.since, progress.by) == (entry.at, f"{entry.user}@{entry.host}")
            assert watcher.view.operations == ()
        async with cluster.console() as second:
            resumed = await second.shown(lambda one: one.phase is Phase.DRAINING)
            assert resumed.id != operation.id
            assert resumed.started == entry.at
            assert resumed.plan.title == f"Drain {worker.key}, asked for by {entry.user}@{entry.host}"
            assert resumed.choices == (Choice.CANCEL,)
            worker.running = 0
            ended = await second.ended(resumed)
            assert (ended.outcome, ended.words) == (Outcome.DONE, "drained: safe to stop")
        async with cluster.console() as third:
            await third.drain_of(worker, lambda one: one.safe_to_stop)
            assert third.view.operations == ()


@virtual
async def test_a_drain_by_hand_is_followed_too(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, before = cluster.decode[0], cluster.text
        worker.running = 2
        table = f'\n[decode.worker."{worker.key}"]\ndrain = true\n'
        cluster.write(before + table)
        edited = await console.shown(lambda one: one.source == "config.toml edited" and one.ended)
        assert done(edited)
        assert worker.url not in cluster.routers[0].urls
        progress = await console.drain_of(worker, lambda one: one.left == 2)
        assert progress.by == "config.toml"
        operation = await console.shown(lambda one: one.phase is Phase.DRAINING)
        cluster.write(before)
        assert (await console.ended(operation)).words == "no longer drained in config.toml"
        await console.until(lambda: worker.url in cluster.routers[0].urls)
        assert [one.worker for one in console.view.readmissions] == [worker.key]


@virtual
async def test_of_several_one_that_is_brought_back_is_not_waited_for(tmp_path: Path) -> None:
    async with plant(tmp_path, decode=4) as cluster, cluster.console() as console:
        one, two = cluster.decode[:2]
        one.running = two.running = 2
        operation = await console.do(Drain((one.key, two.key)))
        assert done(await console.do(Undrain((one.key,))))
        still = await console.shown(lambda shown: shown.id == operation.id)
        assert still.phase is Phase.DRAINING
        two.running = 0
        assert done(await console.ended(operation))


@virtual
async def test_a_worker_that_comes_back_by_itself_is_drained_again(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, router = cluster.decode[0], cluster.routers[0]
        worker.running = 1
        operation = await console.do(Drain((worker.key,)))
        await console.drain_of(worker, lambda one: one.state is DrainState.DRAINING)
        router.model.put(worker.url, "decode")  # service discovery
        again = await console.shown(lambda one: one.source == "reassert" and one.ended)
        assert (again.plan.title, again.outcome) == (f"drained again: {worker.key}", Outcome.DONE)
        assert worker.url not in router.urls
        worker.running = 0
        assert done(await console.ended(operation))
        assert [entry.source for entry in console.log if entry.operation == "apply"] == ["reassert"]


@virtual
async def test_a_read_only_console_only_says_that_it_came_back(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster:
        worker, router = cluster.decode[0], cluster.routers[0]
        async with cluster.console() as console:
            await console.ended(await console.do(Drain((worker.key,))))
        writes = list(router.model.writes)
        async with cluster.console(Arming(True)) as watcher:
            await watcher.drain_of(worker, lambda one: one.safe_to_stop)
            router.model.put(worker.url, "decode")
            progress = await watcher.drain_of(worker, lambda one: not one.safe_to_stop)
            assert (progress.state, progress.still_on) == (DrainState.PARTLY_DRAINED, (router.name,))
            await asyncio.sleep(30.0)
            assert router.model.writes == writes


@virtual
async def test_a_restarted_router_gets_the_drain_again(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, router = cluster.decode[0], cluster.routers[0]
        worker.running = 1
        await console.do(Drain((worker.key,)))
        await console.drain_of(worker, lambda one: one.state is DrainState.DRAINING)
        router.restart(list(cluster.roles), cluster.roles)
        again = await console.shown(lambda one: one.source == "router restarted" and one.ended)
        assert again.outcome is Outcome.DONE
        assert again.plan.title == (
            f"{router.name} has restarted (its workers have new ids): config.toml asserted there"
        )
        assert worker.url not in router.urls
        await asyncio.sleep(20.0)
        assert sum(one.source == "router restarted" for one in console.view.operations) == 1


@virtual
async def test_a_drain_that_was_never_in_force_is_put_in_force(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster:
        worker = cluster.decode[0]
        cluster.write(cluster.text + f'\n[decode.worker."{worker.key}"]\ndrain = true\n')
        async with cluster.console() as console:
            again = await console.shown(lambda one: one.source == "reassert" and one.ended)
            assert done(again)
            assert worker.url not in cluster.routers[0].urls


@virtual
async def test_since_is_when_it_was_asked_for(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker = cluster.decode[0]
        worker.running = 1
        operation = await console.do(Drain((worker.key,), timeout_s=600.0))
        progress = await console.drain_of(worker, lambda one: one.left == 1)
        assert progress.since is not None
        assert progress.since > EPOCH
        assert abs(progress.since - operation.started) < 0.1
        assert progress.deadline == progress.since + 600.0
