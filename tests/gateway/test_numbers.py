"""pdtop watching its own router over simulated workers: the numbers are what the workers did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from pdtop.cluster.launch import find, start
from pdtop.gateway.fleet import Fleet
from pdtop.simulator.load import Load
from pdtop.simulator.scheduler import wall_clock
from pdtop.simulator.traffic import Traffic
from pdtop.simulator.worker import SimWorker
from tests.gateway.test_gateway import CHAT, config, router
from tests.simulator.comparison import check_finished, has_seen, truth
from tests.simulator.support import DECODE, PREFILL, client, eventually, post, workers


async def test_numbers_after_a_load_are_what_the_workers_did() -> None:
    async with (
        workers(PREFILL, PREFILL, DECODE, replace(DECODE, dp=2)) as running,
        router(config(running)) as (_, url),
        client() as session,
    ):
        monitor = start(find([url], [], []), interval_s=0.2, window_s=60.0)
        try:
            assert await asyncio.to_thread(monitor.wait_first_round, 10.0)
            calls = [
                post(session, url + "/v1/chat/completions", {**CHAT, "max_tokens": 60, "stream": i % 3 > 0})
                for i in range(24)
            ]
            assert [a.status for a in await asyncio.gather(*calls)] == [200] * 24
            facts = [await truth(session, w) for w in running]
            await eventually(lambda: has_seen(monitor.latest(), 24))
            snapshot = monitor.latest()
            check_finished(snapshot, "pdtop", running, facts)
        finally:
            await asyncio.to_thread(monitor.stop)
    assert snapshot.ttft is not None and snapshot.ttft.distribution is not None
    assert (snapshot.ttft.source, snapshot.ttft.metric) == ("router", "smg_pd_ttft_seconds")
    assert snapshot.ttft.distribution.count == 16  # the streams: the others have no first token
    assert [w.share for w in snapshot.pool_workers(snapshot.decode.role)] == [0.5, 0.5]


def held(worker: SimWorker) -> int:
    """Requests on a worker, wherever they are in it."""
    now = wall_clock()
    gauges = [engine.gauges(now) for engine in worker.engines]
    return sum(
        g.running + g.queue + g.bootstrap + g.inflight + g.prealloc + g.transfer + g.retracted for g in gauges
    )


async def watched(fleet: Fleet, running: Sequence[SimWorker], load: asyncio.Task[None]) -> list[list[int]]:
    """For each moment of a load what the router counts more than each worker holds."""
    counted = {b.url: b for b in fleet}
    apart: list[list[int]] = []
    while not load.done():
        for worker in running:
            for scheduler in worker.schedulers:
                scheduler.sync()
        apart.append([counted[w.url].inflight - held(w) for w in running])
        await asyncio.sleep(0.004)
    await load
    return apart


async def test_the_routers_count_is_what_the_workers_hold() -> None:
    traffic = Traffic(rate=60.0, prompt_median=300, output_median=120, streaming=0.8)
    async with (
        workers(PREFILL, PREFILL, DECODE, DECODE) as running,
        router(config(running)) as (gateway, url),
    ):
        load = Load(url, traffic, seed=3)
        sending = asyncio.create_task(load.run(1.2))
        apart = await watched(gateway.fleet, running, sending)
        left = [(b.inflight, held(w)) for b, w in zip(gateway.fleet, running, strict=True)]
    assert load.seen.counts["ok"] == load.seen.counts["sent"] > 40
    for differences in zip(*apart, strict=True):
        # On its way to the worker or back a request counts at the router only, and never the other way.
        assert min(differences) >= 0
        assert sorted(differences)[len(differences) // 2] <= 1
    assert left == [(0, 0)] * 4
