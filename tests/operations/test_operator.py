"""The gate: read-only and the lock, from a plan to an outcome that is in the log before it is told."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from pdtop.cluster.model import Role
from pdtop.operations.arming import Arming
from pdtop.operations.model import (
    AddWorker,
    Apply,
    Drain,
    Operation,
    Outcome,
    Phase,
    RemoveWorker,
    Request,
    SetValue,
    SetWeight,
    Undo,
    Undrain,
    UnsetValue,
    View,
)
from pdtop.operations.operator import Operator
from tests.operations.plant import EPOCH, Plant, done, plant, virtual

READ_ONLY = Arming(True)


def quiet(cluster: Plant) -> bool:
    """No router was told anything."""
    return not any(router.model.writes for router in cluster.routers)


@virtual
async def test_a_drain_from_plan_to_drained_and_back(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker = cluster.decode[0]
        worker.running = 3
        before = cluster.text
        waiting = await console.do(Drain((worker.key,)))
        assert (waiting.phase, waiting.outcome) == (Phase.DRAINING, None)
        assert cluster.routers[0].urls == {w.url for w in cluster.workers if w is not worker}
        progress = await console.drain_of(worker, lambda one: one.left == 3)
        assert (progress.since, progress.by) == (
            waiting.started,
            f"{console.log[0].user}@{console.log[0].host}",
        )
        worker.running = 0
        ended = await console.ended(waiting)
        assert (ended.outcome, ended.words) == (Outcome.DONE, "drained: safe to stop")
        assert [entry.operation for entry in console.log] == ["drained", "drain"]
        back = await console.do(Undrain((worker.key,)))
        assert done(back), back
        assert cluster.text == before
        assert worker.url in cluster.routers[0].urls
        assert [one.worker for one in console.view.readmissions] == [worker.key]


@virtual
async def test_a_plan_sends_and_writes_nothing(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, before = cluster.decode[0].key, cluster.text
        requests: list[Request] = [
            Drain((worker,)),
            Undrain((worker,)),
            SetWeight(worker, 0.5),
            SetValue(("health", "interval_secs"), "9"),
            UnsetValue(("decode", "policy")),
            AddWorker(Role.DECODE, "10.0.0.9:1"),
            RemoveWorker(worker),
            Apply(prune=True),
            Undo(),
        ]
        plans = [await console.plan(request) for request in requests]
        assert [plan.request for plan in plans] == requests
        assert "+drain = true" in plans[0].diff
        assert quiet(cluster)
        assert cluster.text == before
        assert not (tmp_path / "state" / "clusters").exists() or console.log == ()


@virtual
async def test_read_only_is_said_in_the_plan_and_refuses_whatever_asks(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console(READ_ONLY) as console:
        worker, before = cluster.decode[0].key, cluster.text
        assert console.view.read_only
        assert (await asyncio.to_thread(console.monitor.take)).read_only
        plan = await console.plan(Drain((worker,)))
        assert [guard.kind for guard in plan.guards][:1] == ["read_only"]
        refused = console.operator.start(plan)
        assert (refused.outcome, refused.words) == (
            Outcome.REFUSED,
            "read-only: nothing can be changed from here",
        )
        assert (await console.ended(refused)).next_step == "in the console: W; on the command line: --write"
        assert [(entry.operation, entry.outcome) for entry in console.log] == [("drain", "refused")]
        assert (cluster.text, quiet(cluster)) == (before, True)
        assert console.operator.arm() == ""
        assert (console.view.read_only, console.view.armed_by) == (False, "this console")
        assert (await console.settled(console.operator.start(plan))).phase is Phase.DRAINING
        console.operator.disarm()
        assert console.view.read_only
        assert (await console.do(Undrain((worker,)))).outcome is Outcome.REFUSED


@virtual
async def test_a_plan_made_read_only_keeps_its_other_refusals(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console(READ_ONLY) as console:
        plan = await console.plan(SetValue(("prefill", "cache_aware_threshold"), "30"))
        assert {guard.kind for guard in plan.guards} == {"read_only", "range"}
        assert console.operator.arm() == ""
        assert console.operator.start(plan).words.startswith("prefill.cache_aware_threshold = 30")


@virtual
async def test_who_operates_elsewhere_is_said_with_since_when(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as first, cluster.console() as second:
        holder = second.view.holder
        assert holder is not None
        assert EPOCH < holder.since < EPOCH + 2000.0
        assert second.view.read_only
        assert second.view.notices == (f"read-only all the same: {holder.text} operates on this cluster",)
        plan = await second.plan(Drain((cluster.decode[0].key,)))
        assert plan.guards[0].kind == "locked"
        assert holder.text in plan.guards[0].text
        assert "operates on this cluster" in second.operator.arm()
        assert (await second.do(Drain((cluster.decode[0].key,)))).outcome is Outcome.REFUSED
        first.operator.disarm()
        assert second.operator.arm() == ""
        assert second.view.holder is None
        await first.until(lambda: first.view.holder is not None)


@virtual
async def test_the_lock_is_kept_until_what_is_under_way_has_ended(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console, cluster.console(READ_ONLY) as other:
        cluster.routers[0].hangs_on = "DELETE"
        operation = await console.start(Drain((cluster.decode[0].key,)))
        await console.shown(lambda one: one.phase is Phase.APPLYING)
        console.operator.disarm()
        assert "operates on this cluster" in other.operator.arm()
        await console.settled(operation)
        await other.until(lambda: other.operator.arm() == "")


@virtual
async def test_without_a_config_file_nothing_can_be_changed(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console(READ_ONLY) as console:
        without = Operator(console.monitor, path=None, root=tmp_path / "other")
        assert without.arm() == "there is no config.toml: changes would have nowhere to last"
        plan = await asyncio.to_thread(without.plan, Drain((cluster.decode[0].key,)))
        assert "no_config" in [guard.kind for guard in plan.guards]
        assert without.start(plan).outcome is Outcome.REFUSED
        without.close()


@virtual
async def test_what_has_ended_is_in_the_log_before_it_is_told(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        missing: list[Operation] = []

        def look(view: View) -> None:
            logged = {entry.operation for entry in console.log if entry.outcome}
            missing.extend(one for one in view.operations if one.ended and not logged)

        console.operator.subscribe(look)
        worker = cluster.decode[0].key
        assert done(await console.do(SetValue(("slo", "ttft_p99_ms"), "700")))
        assert done(await console.ended(await console.do(Drain((worker,)))))
        assert done(await console.do(Undrain((worker,))))
        assert missing == []
        outcomes = [(entry.operation, entry.outcome) for entry in console.log]
        assert outcomes == [("undrain", "done"), ("drained", "done"), ("drain", "done"), ("set", "done")]
        entry = console.log[2]
        assert [(c.method, c.status) for c in entry.calls if c.method != "GET"] == [("DELETE", 202)]
        assert entry.change is not None
        assert [(k.path[-1], k.before, k.after) for k in entry.change.keys] == [("drain", None, "true")]


@virtual
async def test_the_last_of_a_pool_wants_its_name_typed_exactly(tmp_path: Path) -> None:
    async with plant(tmp_path, decode=1) as cluster, cluster.console() as console:
        worker, before = cluster.decode[0].key, cluster.text
        for typed in ((), ("",), (worker[:-1],), (worker.upper() + "x",)):
            refused = await console.do(Drain((worker,)), *typed)
            assert refused.outcome is Outcome.REFUSED, typed
            assert f"type {worker}" in refused.next_step
        assert (cluster.text, quiet(cluster)) == (before, True)
        assert (await console.do(Drain((worker,)), worker)).phase is Phase.DRAINING
        assert cluster.decode[0].url not in cluster.routers[0].urls


@virtual
async def test_guards_are_asked_again_when_it_begins(tmp_path: Path) -> None:
    async with plant(tmp_path, decode=2) as cluster, cluster.console() as console:
        worker, other = cluster.decode
        plan = await console.plan(Drain((worker.key,)))
        assert plan.overrides == ()
        before = cluster.text
        cluster.routers[0].model.workers[other.url]["is_healthy"] = False
        await console.until(lambda: other.key in console.unusable)
        refused = await console.ended(console.operator.start(plan))
        assert refused.outcome is Outcome.REFUSED
        assert f"{worker.key} is the last usable decode worker" in refused.words
        assert (cluster.text, quiet(cluster)) == (before, True)


@virtual
async def test_a_worker_that_has_vanished_since_is_not_drained(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker = cluster.decode[2]
        plan = await console.plan(Drain((worker.key,)))
        cluster.write(cluster.text.replace(f', "{worker.key}"', ""))
        await console.until(lambda: console.monitor.latest().worker(worker.key) is None)
        refused = await console.ended(console.operator.start(plan))
        assert refused.outcome is Outcome.REFUSED
        assert f"there is no worker '{worker.key}' any more" in refused.words
        assert "drain" not in cluster.text


@virtual
async def test_a_plan_is_carried_out_once(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        plan = await console.plan(SetWeight(cluster.decode[0].key, 0.5))
        assert done(await console.settled(console.operator.start(plan)))
        again = console.operator.start(plan)
        assert (again.outcome, again.words) == (Outcome.REFUSED, "this plan is too old, or was begun")
        old = await console.plan(SetWeight(cluster.decode[0].key, 0.7))
        for _ in range(20):
            await console.plan(Undo())
        assert console.operator.start(old).outcome is Outcome.REFUSED
        assert "weight = 0.5" in cluster.text


@virtual
async def test_operations_on_one_worker_follow_each_other(tmp_path: Path) -> None:
    async with plant(tmp_path, engine="smg") as cluster, cluster.console() as console:
        worker, other = cluster.decode[:2]
        before = cluster.text
        cluster.routers[0].slow_s = 1.0
        draining = await console.start(Drain((worker.key,)))
        await console.shown(lambda one: one.id == draining.id and one.phase is Phase.APPLYING)
        back = await console.start(Undrain((worker.key,)))
        elsewhere = await console.start(SetWeight(other.key, 0.5))
        await console.ended(elsewhere)
        assert not any(one.ended for one in console.view.operations if one.id == back.id)
        assert done(await console.ended(back))
        assert (await console.ended(draining)).outcome is Outcome.CANCELLED
        assert cluster.text.replace("weight = 0.5", "").split() == _with_table(before, other.key).split()
        assert worker.url in cluster.routers[0].urls
        methods = [line.split()[0] for line in cluster.routers[0].model.writes]
        assert methods == ["DELETE", "POST"]


def _with_table(text: str, key: str) -> str:
    """The text with an empty table of a decode worker, where a new one is put."""
    policy = 'policy = "round_robin"\n'
    head, tail = text.rsplit(policy, 1)
    return f'{head}{policy}[decode.worker."{key}"]\n{tail}'


@virtual
async def test_subscribers_see_every_change_and_harm_nothing(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        seen: list[View] = []

        def broken(view: View) -> None:
            raise ZeroDivisionError

        leave_broken = console.operator.subscribe(broken)
        leave = console.operator.subscribe(seen.append)
        operation = await console.do(SetWeight(cluster.decode[0].key, 0.5))
        phases = [one.phase for view in seen for one in view.operations if one.id == operation.id]
        assert list(dict.fromkeys(phases)) == [Phase.WAITING, Phase.WRITING, Phase.APPLYING, Phase.ENDED]
        assert all(a != b for a, b in itertools.pairwise(seen))
        leave()
        leave_broken()
        count = len(seen)
        console.operator.dismiss(operation.id)
        assert console.view.operations == ()
        assert len(seen) == count


@virtual
async def test_waiting_for_an_operation_ends_with_it_or_with_the_time(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker = cluster.decode[0]
        worker.running = 1
        operation = await console.do(Drain((worker.key,)))
        assert console.operator.wait(operation.id, 0.0).phase is Phase.DRAINING
        worker.running = 0
        await console.ended(operation)
        assert done(console.operator.wait(operation.id))
        console.operator.dismiss()
        with pytest.raises(KeyError, match=operation.id):
            console.operator.wait(operation.id, 0.0)


@virtual
async def test_a_changed_threshold_is_compared_with_before(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:

        def title() -> str:
            return console.view.comparison.title if console.view.comparison is not None else ""

        await console.do(SetValue(("slo", "ttft_p99_ms"), "700"))
        assert title() == ""
        await console.do(SetValue(("prefill", "cache_aware_threshold"), "0.4"))
        await console.until(lambda: "prefill.cache_aware_threshold" in title())
        await console.do(SetWeight(cluster.decode[0].key, 0.5))
        await console.until(lambda: "weight" in title())


@virtual
async def test_what_is_asked_of_an_engine_that_has_ended_fails(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster:
        async with cluster.console() as console:
            plan = await console.plan(SetWeight(cluster.decode[0].key, 0.5))
            console.monitor._loop = None
            failed = console.operator.start(plan)
            console.monitor._loop = asyncio.get_running_loop()
        assert (failed.outcome, failed.words) == (Outcome.FAILED, "pdtop's engine has ended")
        assert "weight" not in cluster.text


@virtual
async def test_keys_of_the_environment_do_not_get_into_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDTOP_API_KEY", "data-7f3a9c")
    monkeypatch.setenv("PDTOP_ADMIN_KEY", "admin-51be02")
    async with plant(tmp_path) as cluster, cluster.console() as console:
        router = cluster.routers[0]
        router.says = "you sent data-7f3a9c and admin-51be02"
        router.refuses = 500
        failed = await console.do(Drain((cluster.decode[0].key,)))
        assert failed.words
        raw = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("audit.jsonl"))
        assert b"you sent" in raw
        assert b"7f3a9c" not in raw
        assert b"51be02" not in raw
