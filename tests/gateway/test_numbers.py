"""pdtop watching its own router over simulated workers: the numbers are what the workers did."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pdtop.cluster.launch import find, start
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
