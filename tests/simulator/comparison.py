"""pdtop's numbers against what the simulated workers say that they did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from pdtop.cluster.model import Health, Role, Snapshot, State, Worker
from pdtop.simulator.worker import SimWorker
from tests.simulator.support import get


async def truth(session: aiohttp.ClientSession, worker: SimWorker) -> Any:
    return (await get(session, worker.url + "/truth")).json


def key(worker: SimWorker) -> str:
    return worker.url.removeprefix("http://")


def has_seen(snapshot: Snapshot, requests: int) -> bool:
    """Whether the snapshot's window holds that many requests, by prefill, by decode and by the router."""
    transfers = sum(w.kv_transfer_ms.count for w in snapshot.workers if w.kv_transfer_ms is not None)
    ttft = snapshot.decode.ttft
    first_tokens = ttft.distribution.count if ttft is not None and ttft.distribution is not None else 0
    return (transfers, first_tokens, dispatched(snapshot)) == (requests, requests, 2 * requests)


def dispatched(snapshot: Snapshot) -> float:
    """Dispatches in the window as the router counts them, both pools."""
    return sum(opinion.requests or 0 for w in snapshot.workers for opinion in w.opinions)


def check_finished(
    snapshot: Snapshot, engine: str, running: Sequence[SimWorker], facts: Sequence[Any]
) -> None:
    """Everything that a snapshot says of finished requests."""
    (router,) = snapshot.routers
    assert (router.engine, router.ready, router.state) == (engine, True, State.OK)
    assert {w.key for w in snapshot.workers} == {key(w) for w in running}
    for pool in (snapshot.prefill, snapshot.decode):
        members = [w for w in running if w.spec.role == pool.role]
        assert (pool.usable, pool.total) == (len(members), len(members))
    for worker, fact in zip(running, facts, strict=True):
        shown = snapshot.worker(key(worker))
        assert shown is not None
        assert (shown.role, shown.state) == (Role(worker.spec.role), State.OK)
        assert shown.identity.version == "0.5.23"
        (opinion,) = shown.opinions
        assert opinion.health is Health.HEALTHY
        assert opinion.requests == fact["counts"]["received"]
        if worker.spec.role == "prefill":
            _check_prefill(shown, fact)
        else:
            _check_decode(shown, fact, worker.spec.dp)
    every = [v for fact in facts for _, v in fact["ttft_s"]]
    assert snapshot.decode.ttft is not None and snapshot.decode.ttft.distribution is not None
    assert snapshot.decode.ttft.distribution.sum == pytest.approx(sum(every))


def _check_prefill(shown: Worker, fact: Any) -> None:
    counts = fact["counts"]
    assert shown.ttft is None or shown.ttft.distribution is None
    assert shown.queue_time is not None and shown.queue_time.distribution is not None
    assert shown.kv_transfer_ms is not None
    assert shown.kv_transfer_ms.count == counts["transfers"]
    cached = counts["prefill_cached_tokens"]
    assert shown.hit_rate == pytest.approx(cached / (cached + counts["prefill_computed_tokens"]))


def _check_decode(shown: Worker, fact: Any, ranks: int) -> None:
    assert len(shown.ranks) == ranks
    ttft = [v for _, v in fact["ttft_s"]]
    assert shown.ttft is not None and shown.ttft.distribution is not None
    below = [sum(v <= bound for v in ttft) for bound in shown.ttft.distribution.bounds]
    assert list(shown.ttft.distribution.counts) == below
    assert shown.ttft.distribution.sum == pytest.approx(sum(ttft))
    tpot = [v for _, v in fact["tpot_s"]]
    assert shown.tpot is not None and shown.tpot.distribution is not None
    assert shown.tpot.distribution.count == len(tpot)
    assert shown.tpot.distribution.sum == pytest.approx(sum(tpot))
