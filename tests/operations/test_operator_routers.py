"""Outcomes by what routers do: partly, timed out, refused, wrong keys; restarts; what is owed to a router."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pdtop.cluster.model import Role
from pdtop.operations.arming import Arming
from pdtop.operations.model import (
    AddWorker,
    Apply,
    Drain,
    DrainState,
    Outcome,
    Phase,
    Restart,
    SetValue,
    Undrain,
)
from tests.operations.plant import done, plant, virtual


@virtual
async def test_a_router_that_is_down_makes_it_partly_done_and_is_told_later(tmp_path: Path) -> None:
    async with plant(tmp_path, routers=2) as cluster, cluster.console() as console:
        first, second = cluster.routers
        worker = cluster.decode[0]
        second.down = True
        await console.until(lambda: console.monitor.latest().routers[1].state != "ok")
        operation = await console.do(Drain((worker.key,)))
        assert [(one.router, one.outcome) for one in operation.routers] == [
            (first.name, Outcome.DONE),
            (second.name, Outcome.TIMED_OUT),
        ]
        assert (console.log[0].operation, console.log[0].outcome) == ("drain", "partly done")
        assert worker.url not in first.urls
        progress = await console.drain_of(worker, lambda one: one.state is DrainState.PARTLY_DRAINED)
        assert progress.still_on == (second.name,)
        second.down = False
        told = await console.shown(lambda one: one.source == "reassert" and one.ended)
        assert told.plan.title.startswith(f"{second.name} answers again: Drain decode worker")
        assert worker.url not in second.urls
        assert done(await console.ended(operation))


@virtual
async def test_an_undrain_is_owed_to_a_router_that_was_down(tmp_path: Path) -> None:
    async with plant(tmp_path, routers=2) as cluster, cluster.console() as console:
        worker, second = cluster.decode[0], cluster.routers[1]
        await console.ended(await console.do(Drain((worker.key,))))
        second.down = True
        back = await console.do(Undrain((worker.key,)))
        assert back.outcome is Outcome.PARTLY_DONE
        assert second.name in back.words
        second.down = False
        await console.until(lambda: worker.url in second.urls)


@virtual
async def test_a_router_that_hangs_is_timed_out(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        cluster.routers[0].hangs_on = "POST"
        added = await console.do(AddWorker(Role.DECODE, "127.0.0.1:9"))
        assert (added.outcome, added.routers[0].outcome) == (Outcome.TIMED_OUT, Outcome.TIMED_OUT)
        assert "127.0.0.1:9" in cluster.text


@virtual
async def test_what_a_router_takes_and_does_not_do(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        cluster.routers[0].model.dead.add("http://127.0.0.1:9")
        added = await console.do(AddWorker(Role.DECODE, "127.0.0.1:9"))
        assert added.outcome is Outcome.ACCEPTED_NOT_APPLIED
        assert "accepted (202), but after" in added.words
        assert "/health" in added.next_step


@virtual
async def test_a_wrong_key_writes_nothing(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        before = cluster.text
        plan = await console.plan(Drain((cluster.decode[0].key,)))
        cluster.routers[0].closed = 401
        refused = await console.ended(console.operator.start(plan))
        assert refused.outcome is Outcome.REFUSED
        assert refused.words.endswith("; nothing was done")
        assert "401" in refused.words
        assert "PDTOP_ADMIN_KEY" in refused.next_step
        assert cluster.text == before
        assert console.log[0].change is None
        cluster.routers[0].closed = None
        assert (await console.settled(console.operator.start(plan))).phase is Phase.DRAINING


@virtual
async def test_a_wrong_key_at_one_router_is_gone_past_only_by_its_name(tmp_path: Path) -> None:
    async with plant(tmp_path, routers=2) as cluster, cluster.console() as console:
        worker, second = cluster.decode[0], cluster.routers[1]
        second.closed = 401
        await console.until(lambda: console.monitor.latest().routers[1].state == "auth")
        refused = await console.do(Drain((worker.key,)))
        assert refused.outcome is Outcome.REFUSED
        assert second.name in refused.next_step
        assert "drain" not in cluster.text
        operation = await console.do(Drain((worker.key,)), second.name)
        assert operation.phase is Phase.DRAINING
        assert [one.outcome for one in operation.routers] == [Outcome.DONE, Outcome.REFUSED]


@virtual
async def test_a_key_that_may_only_read_restores_the_file_byte_for_byte(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        before = cluster.path.read_bytes()
        cluster.routers[0].refuses = 403
        refused = await console.do(Drain((cluster.decode[0].key,)))
        assert (refused.phase, refused.outcome) == (Phase.ENDED, Outcome.REFUSED)
        assert refused.words.endswith("config.toml is as it was")
        assert "role admin" in refused.next_step
        assert cluster.path.read_bytes() == before
        assert (console.log[0].outcome, console.log[0].change) == ("refused", None)
        await asyncio.sleep(20.0)
        assert [one.source for one in console.view.operations] == ["console"]
        assert not console.view.drains
        assert console.view.undoable == ""


@virtual
async def test_what_fails_at_the_router_is_failed(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        cluster.routers[0].refuses, cluster.routers[0].says = 500, "out of order"
        failed = await console.do(AddWorker(Role.DECODE, "127.0.0.1:9"))
        assert failed.outcome is Outcome.REFUSED
        assert "500 out of order" in failed.words


@virtual
async def test_applying_brings_a_router_to_what_the_file_says(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        router, worker = cluster.routers[0], cluster.decode[0]
        router.model.vanish(worker.url)
        router.model.put("http://10.0.0.9:1", "decode")
        plan = await console.plan(Apply())
        assert [(step.where, step.words.split(" (")[0]) for step in plan.steps] == [
            (router.name, f"add decode {worker.key}")
        ]
        assert ("", "`--prune` takes these out, too") in plan.rows
        assert done(await console.settled(console.operator.start(plan)))
        assert worker.url in router.urls
        assert (await console.plan(Apply())).nothing_to_do == "the routers are as config.toml says"
        assert done(await console.do(Apply(prune=True)))
        assert "http://10.0.0.9:1" not in router.urls


@virtual
async def test_a_plan_to_apply_another_file_is_refused(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        cluster.routers[0].model.vanish(cluster.decode[0].url)
        plan = await console.plan(Apply())
        cluster.write(cluster.text + "# new\n")
        refused = await console.ended(console.operator.start(plan))
        assert (refused.outcome, refused.words) == (Outcome.REFUSED, "config.toml was changed meanwhile")


@virtual
async def test_the_file_is_kept_true_without_being_asked(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console(keep_true=True) as console:
        router, worker = cluster.routers[0], cluster.decode[0]
        router.model.put("http://10.0.0.9:1", "decode")  # no file ever named it
        router.model.vanish(worker.url)
        told = await console.shown(lambda one: one.source == "apply --watch" and one.ended)
        assert (told.plan.title, told.outcome) == (f"as config.toml says: {worker.key}", Outcome.DONE)
        assert router.urls == {*(one.url for one in cluster.workers), "http://10.0.0.9:1"}
        await asyncio.sleep(60.0)
        assert len(console.view.operations) == 1


@virtual
async def test_what_a_file_named_before_this_console_may_be_taken_out(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster:
        gone = cluster.decode[2]
        async with cluster.console():
            await asyncio.sleep(1.0)
        cluster.write(cluster.text.replace(f', "{gone.key}"', ""))
        async with cluster.console(keep_true=True) as console:
            await console.until(lambda: gone.url not in cluster.routers[0].urls)


# Changes that wait for a restart --------------------------------------------------------------------------

POLICY = SetValue(("decode", "policy"), '"random"')


@virtual
async def test_a_change_that_needs_a_restart_waits_over_consoles(tmp_path: Path) -> None:
    async with plant(tmp_path, engine="smg") as cluster:
        async with cluster.console() as console:
            before = cluster.text
            operation = await console.do(POLICY)
            assert operation.outcome is Outcome.ACCEPTED_NOT_APPLIED
            assert operation.words == "written; decode.policy counts only after a restart of the router"
            await console.do(SetValue(("decode", "policy"), '"power_of_two"'))
            restart = console.view.restart
            assert restart is not None
            assert [c.text for c in restart.changes] == ['decode.policy: "round_robin" → "power_of_two"']
            assert restart.restart_command == ()
            plan = await console.plan(Restart())
            assert [guard.kind for guard in plan.guards if guard.blocks] == ["no_command"]
            await asyncio.sleep(1.0)
        async with cluster.console(Arming(True)) as later:
            assert later.view.restart is not None
            assert later.view.restart.changes == restart.changes
        async with cluster.console() as last:
            await last.do(SetValue(("decode", "policy"), '"round_robin"'))
            assert last.view.restart is None  # as the router was started
            assert cluster.text == before


@virtual
async def test_a_restart_by_command_ends_the_waiting(tmp_path: Path) -> None:
    async with plant(tmp_path, engine="smg") as cluster:
        command = [sys.executable, "-c", "pass"]
        words = ", ".join(f'"{word}"' for word in command)
        cluster.write(cluster.text.replace("[server]", f"[server]\nrestart_command = [{words}]"))
        async with cluster.console() as console:
            assert (await console.plan(Restart())).nothing_to_do != ""
            await console.do(POLICY)
            plan = await console.plan(Restart())
            assert plan.steps[0].words == "run " + " ".join(command)
            assert dict(plan.rows)["Takes effect"] == 'decode.policy: "round_robin" → "random"'
            restarted = await console.settled(console.operator.start(plan))
            assert done(restarted), restarted
            assert console.view.restart is None
            assert (console.log[0].operation, console.log[0].outcome) == ("restart", "done")
            await asyncio.sleep(1.0)
        async with cluster.console() as later:
            assert later.view.restart is None


@virtual
async def test_a_restart_that_fails_says_the_last_word_of_its_command(tmp_path: Path) -> None:
    async with plant(tmp_path, engine="smg") as cluster:
        words = f'"{sys.executable}", "-c", "import sys; sys.exit(\'no such unit\')"'
        cluster.write(cluster.text.replace("[server]", f"[server]\nrestart_command = [{words}]"))
        async with cluster.console() as console:
            await console.do(POLICY)
            failed = await console.do(Restart())
            assert failed.outcome is Outcome.FAILED
            assert failed.words.endswith("ended with code 1: no such unit")
            assert console.view.restart is not None


@virtual
async def test_a_router_that_somebody_restarted_waits_no_more(tmp_path: Path) -> None:
    async with plant(tmp_path, engine="smg") as cluster, cluster.console() as console:
        await console.do(POLICY)
        assert console.view.restart is not None
        await asyncio.sleep(5.0)
        cluster.routers[0].restart(list(cluster.roles), cluster.roles)
        await console.until(lambda: console.view.restart is None)


@virtual
async def test_a_hand_edit_may_need_a_restart_too(tmp_path: Path) -> None:
    async with plant(tmp_path, engine="smg") as cluster, cluster.console() as console:
        cluster.write(cluster.text.replace('policy = "round_robin"', 'policy = "random"'))
        edited = await console.shown(lambda one: one.source == "config.toml edited" and one.ended)
        assert edited.outcome is Outcome.ACCEPTED_NOT_APPLIED
        assert console.view.restart is not None
        assert {change.key for change in console.view.restart.changes} == {"prefill.policy", "decode.policy"}
