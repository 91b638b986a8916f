"""Random requests from several people and two consoles at once: what must hold whatever they ask for."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from pdtop.cluster.model import Role
from pdtop.config.load import load
from pdtop.operations.model import (
    AddWorker,
    Choice,
    Drain,
    RemoveWorker,
    Request,
    SetValue,
    SetWeight,
    Undo,
    Undrain,
    UnsetValue,
)
from tests.operations.plant import Console, Plant, plant, virtual

THRESHOLD = ("prefill", "cache_aware_threshold")
PEOPLE = 4
TURNS = 25


def anything(chance: random.Random, cluster: Plant) -> Request:
    worker = chance.choice(cluster.workers)
    two = chance.sample([one.key for one in cluster.decode], 2)
    port = 8998 if worker.role == "prefill" else None
    return chance.choice(
        (
            Drain((worker.key,)),
            Drain(tuple(two)),
            Undrain((worker.key,)),
            SetWeight(worker.key, chance.choice((0.0, 0.5, 1.0))),
            SetValue(THRESHOLD, f"0.{chance.randint(1, 9)}"),
            SetValue(("decode", "policy"), chance.choice(('"random"', '"round_robin"', '"nonsense"'))),
            UnsetValue(THRESHOLD),
            RemoveWorker(worker.key),
            AddWorker(Role(worker.role), worker.key, port),
            Undo(),
        )
    )


async def a_person(chance: random.Random, cluster: Plant, consoles: list[Console]) -> None:
    for _ in range(TURNS):
        operator, act = chance.choice(consoles).operator, chance.random()
        if act < 0.05:
            await asyncio.to_thread(operator.disarm)
        elif act < 0.15:
            await asyncio.to_thread(operator.arm)
        elif act < 0.2:
            operator.dismiss()
        elif act < 0.3:
            for operation in operator.view().operations[:1]:
                operator.choose(operation.id, chance.choice(list(Choice)))
        else:
            chance.choice(cluster.workers).running = chance.choice((0, 0, 3))
            plan = await asyncio.to_thread(operator.plan, anything(chance, cluster))
            await asyncio.to_thread(operator.start, plan)
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.7, 2.0)))


async def fewest(cluster: Plant, found: dict[str, int]) -> None:
    """The smallest pools that the router ever had."""
    while True:
        for role in found:
            there = [url for url in cluster.routers[0].urls if cluster.roles.get(url) == role]
            found[role] = min(found[role], len(there))
        await asyncio.sleep(0.2)


@virtual
@pytest.mark.parametrize(("seed", "engine"), [(1, "smg"), (2, "sglang-router")])
async def test_whatever_is_asked_for_at_once(tmp_path: Path, seed: int, engine: str) -> None:
    async with (
        plant(tmp_path, engine=engine) as cluster,
        cluster.console() as console,
        cluster.console() as second,
    ):
        pools = {"prefill": 2, "decode": 3}
        looking = asyncio.create_task(fewest(cluster, pools))
        consoles = [console, console, second]
        people = (a_person(random.Random(seed * 100 + n), cluster, consoles) for n in range(PEOPLE))
        await asyncio.gather(*people)
        for worker in cluster.workers:
            worker.running = 0
        await console.until(lambda: all(one.ended for c in (console, second) for one in c.view.operations))
        looking.cancel()
        assert min(pools.values()) >= 1, pools  # nothing was typed over a guard
        log = console.operator.log(100_000)
        assert [entry for entry in log if not entry.outcome or "internal error" in entry.words] == []
        assert len({entry.id for entry in log}) == len(log) > 20
        now = await asyncio.to_thread(load, cluster.path)
        assert now.config is not None, now.problems
        written = [entry.change for entry in log if entry.change is not None]
        assert written[0].digest_after == now.digest  # the file is as the log says
        for former, later in zip(written[1:], written, strict=False):
            assert former.digest_after == later.digest_before
