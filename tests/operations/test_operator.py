"""The gate: from a plan to an outcome, in the log before it is told."""

from __future__ import annotations

from pathlib import Path

from pdtop.operations.model import Drain, Outcome, Phase, Undrain
from tests.operations.plant import plant, virtual


@virtual
async def test_a_drain_from_plan_to_drained_and_back(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker = cluster.decode[0]
        worker.running = 3
        before = cluster.text
        waiting = await console.do(Drain((worker.key,)))
        assert (waiting.phase, waiting.outcome) == (Phase.DRAINING, None)
        assert cluster.routers[0].urls == {w.url for w in cluster.workers if w is not worker}
        await console.drain_of(worker, lambda one: one.left == 3)
        worker.running = 0
        ended = await console.ended(waiting)
        assert (ended.outcome, ended.words) == (Outcome.DONE, "drained: safe to stop")
        assert [entry.operation for entry in console.log] == ["drained", "drain"]
        back = await console.do(Undrain((worker.key,)))
        assert back.outcome is Outcome.DONE, back
        assert cluster.text == before
        assert worker.url in cluster.routers[0].urls
        assert [one.worker for one in console.view.readmissions] == [worker.key]
