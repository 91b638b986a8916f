"""Plans with the file and the log open: what cannot be undone, asked or restarted, and what is said then."""

from __future__ import annotations

from pathlib import Path

from pdtop.operations.model import Apply, Restart, SetValue, SetWeight, Undo
from tests.operations.plant import done, plant, virtual


@virtual
async def test_a_certain_entry_can_be_taken_back_also_by_its_id(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, other = cluster.decode[:2]
        await console.do(SetWeight(worker.key, 0.5))
        await console.do(SetWeight(other.key, 0.75))
        first = console.log[1]
        plan = await console.plan(Undo(first.id))
        assert plan.title == f"Undo: Set the weight of decode worker {worker.key} to 0.5"
        assert plan.targets == (worker.key,)
        assert done(await console.settled(console.operator.start(plan)))
        assert "weight = 0.5" not in cluster.text
        assert "weight = 0.75" in cluster.text
        again = await console.plan(Undo(first.id))
        assert [(one.kind, one.text) for one in again.guards] == [
            ("changed_since", "it was taken back already")
        ]
        unknown = await console.plan(Undo("nobody"))
        assert unknown.nothing_to_do == "the log has no change nobody: pdtop log shows the ids"


@virtual
async def test_a_file_that_cannot_be_written_is_told_before_anything_is_typed(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        linked = cluster.path
        target = Path("/proc/version")  # a folder in which nobody can write
        text = linked.read_text()
        linked.unlink()
        linked.symlink_to(target)
        plan = await console.plan(SetValue(("slo", "ttft_p99_ms"), "700"))
        assert plan.refusal is not None
        linked.unlink()
        linked.write_text(text)
        assert (await console.plan(SetValue(("slo", "ttft_p99_ms"), "700"))).refusal is None


@virtual
async def test_applying_where_routers_do_not_answer_says_so(tmp_path: Path) -> None:
    async with plant(tmp_path, routers=2) as cluster, cluster.console() as console:
        first, second = cluster.routers
        second.down = True
        first.model.vanish(cluster.decode[0].url)
        plan = await console.plan(Apply())
        assert [step.where for step in plan.steps] == [first.name]
        (guard,) = plan.guards
        assert (guard.kind, guard.blocks) == ("router", False)
        assert guard.text.startswith(f"{second.name}: its worker list cannot be read")
        second.down, second.closed = False, 401
        refused = await console.plan(Apply())
        assert refused.refusal is not None
        assert "401" in refused.refusal.text


@virtual
async def test_a_restart_without_changes_has_nothing_to_do(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        assert cluster.routers[0].urls
        plan = await console.plan(Restart())
        assert plan.nothing_to_do == "no change waits for a restart of the router"
        refused = console.operator.start(plan)
        assert refused.words == plan.nothing_to_do
