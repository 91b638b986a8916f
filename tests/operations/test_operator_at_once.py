"""Several operations at the same moment: each right by itself, and together, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pdtop.operations.model import Drain, Outcome, Phase, RemoveWorker, Request, SetWeight
from tests.operations.plant import Console, Plant, embedded, plant, virtual


async def both(console: Console, *requests: Request) -> list[Outcome | None]:
    """Planned before either begins; None: a drain that waits."""
    plans = [await console.plan(request) for request in requests]
    assert all(plan.refusal is None and not plan.overrides for plan in plans)
    begun = [console.operator.start(plan) for plan in plans]
    return [(await console.settled(operation)).outcome for operation in begun]


def busy(cluster: Plant) -> None:
    for worker in cluster.decode:
        worker.running = 3


@virtual
async def test_two_drains_at_once_leave_one_worker(tmp_path: Path) -> None:
    async with plant(tmp_path, decode=2) as cluster, cluster.console() as console:
        busy(cluster)
        one, other = cluster.decode
        cluster.routers[0].slow_s = 1.0
        outcomes = await both(console, Drain((one.key,)), Drain((other.key,)))
        assert sorted(map(str, outcomes)) == ["None", "refused"]
        assert cluster.text.count("drain = true") == 1
        assert len(cluster.routers[0].urls & {one.url, other.url}) == 1
        refused = next(entry for entry in console.log if entry.outcome == "refused")
        assert "the last usable decode worker" in refused.words


@virtual
async def test_two_drains_at_once_at_a_router_that_obeys_the_file(tmp_path: Path) -> None:
    async with plant(tmp_path, decode=2) as cluster, embedded(cluster), cluster.console() as console:
        busy(cluster)
        one, other = cluster.decode
        outcomes = await both(console, Drain((one.key,)), Drain((other.key,)))
        assert sorted(map(str, outcomes)) == ["None", "refused"]
        assert cluster.text.count("drain = true") == 1


@virtual
async def test_a_drain_counts_before_the_next_snapshot(tmp_path: Path) -> None:
    async with plant(tmp_path, decode=2) as cluster, cluster.console() as console:
        busy(cluster)
        one, other = cluster.decode
        cluster.routers[0].slow_s = 5.0
        waiting = await console.start(Drain((one.key,)))
        await console.until(lambda: "drain = true" in cluster.text)
        plan = await console.plan(Drain((other.key,)))
        assert [guard.kind for guard in plan.guards if guard.blocks] == ["last_of_pool"]
        assert f"{one.key} (gets no new work by config.toml)" in plan.guards[0].to_change
        assert (await console.settled(waiting)).phase is Phase.DRAINING


@virtual
@pytest.mark.parametrize("second", [RemoveWorker, lambda key: SetWeight(key, 0)])
async def test_a_drain_and_something_else_that_takes_the_rest(tmp_path: Path, second: object) -> None:
    assert callable(second)
    async with plant(tmp_path, decode=2) as cluster, embedded(cluster), cluster.console() as console:
        one, other = cluster.decode
        outcomes = await both(console, Drain((one.key,)), second(other.key))
        assert outcomes.count(Outcome.REFUSED) == 1


@virtual
async def test_hand_edits_one_after_the_other_leave_a_worker_at_the_router(tmp_path: Path) -> None:
    async with plant(tmp_path, decode=2) as cluster, cluster.console() as console:
        busy(cluster)
        one, other = cluster.decode
        cluster.routers[0].slow_s = 4.0
        cluster.write(cluster.text + f'\n[decode.worker."{one.key}"]\ndrain = true\n')
        await console.until(lambda: len(console.view.operations) == 1)
        cluster.write(cluster.text + f'\n[decode.worker."{other.key}"]\ndrain = true\n')
        await console.until(
            lambda: len([o for o in console.view.operations if o.ended and "edited" in o.source]) == 2
        )
        assert len(cluster.routers[0].urls & {one.url, other.url}) == 1
        held = [o for o in console.view.operations if o.ended and o.outcome is not Outcome.DONE]
        assert len(held) == 1
        assert "the last usable decode worker: it stays in the router" in held[0].words


@virtual
async def test_a_plan_that_two_threads_start_is_carried_out_once(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        plan = await console.plan(SetWeight(cluster.decode[0].key, 0.5))
        begun = await asyncio.gather(*(asyncio.to_thread(console.operator.start, plan) for _ in range(8)))
        ended = [await console.settled(operation) for operation in begun]
        assert [one.outcome for one in ended].count(Outcome.REFUSED) == 7
        assert {one.words for one in ended if one.outcome is Outcome.REFUSED} == {
            "this plan is too old, or was begun"
        }
