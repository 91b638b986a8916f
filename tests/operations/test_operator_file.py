"""config.toml and the gate: others who edit it, conflicts, undo, hand edits told once."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pdtop.operations.arming import Arming
from pdtop.operations.model import (
    Drain,
    Operation,
    Outcome,
    SetValue,
    SetWeight,
    Undo,
    Undrain,
)
from tests.operations.plant import Console, done, plant, virtual

THRESHOLD = SetValue(("prefill", "cache_aware_threshold"), "0.45")


def edited(console: Console) -> list[Operation]:
    return [one for one in console.view.operations if one.source == "config.toml edited"]


@virtual
async def test_another_key_changed_meanwhile_is_shown_first(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        plan = await console.plan(THRESHOLD)
        assert plan.other_changes == ()
        cluster.write(cluster.text.replace('policy = "round_robin"', 'policy = "random"'))
        refused = await console.ended(console.operator.start(plan))
        assert refused.outcome is Outcome.REFUSED
        assert refused.next_step == "look at the change again: it is shown on top of theirs"
        assert refused.conflicts == ()
        assert "0.30" in cluster.text
        again = await console.plan(THRESHOLD)
        assert [change.key for change in again.other_changes] == ["prefill.policy", "decode.policy"]
        assert "-cache_aware_threshold = 0.30  # tuned in May" in again.diff
        assert ' policy = "random"' in again.diff
        await console.settled(console.operator.start(again))
        assert "cache_aware_threshold = 0.45  # tuned in May" in cluster.text
        assert 'policy = "random"' in cluster.text


@virtual
async def test_the_same_key_is_for_the_operator_to_decide(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        plan = await console.plan(THRESHOLD)
        theirs = cluster.text.replace("0.30", "0.35").replace("[console]", "[console]\nmouse = false")
        cluster.write(theirs)
        refused = await console.ended(console.operator.start(plan))
        assert refused.outcome is Outcome.REFUSED
        (conflict,) = refused.conflicts
        assert (conflict.key, conflict.base, conflict.theirs, conflict.mine) == (
            "prefill.cache_aware_threshold",
            0.3,
            0.35,
            0.45,
        )
        assert cluster.text == theirs
        mine = await console.ended(console.operator.start(refused.plan, overrule=True))
        assert mine.outcome is Outcome.ACCEPTED_NOT_APPLIED or done(mine)
        assert cluster.text == theirs.replace("0.35", "0.45")
        entry = next(entry for entry in console.log if entry.change is not None)
        assert entry.change is not None
        assert [(key.before, key.after) for key in entry.change.keys] == [("0.35", "0.45")]


@virtual
async def test_what_others_changed_under_our_write_is_brought_to_the_routers(tmp_path: Path) -> None:
    """Ours comes before the watch has seen theirs, so that it sees both as one."""
    async with plant(tmp_path) as cluster, cluster.console() as console:
        gone = cluster.decode[2]
        cluster.write(cluster.text.replace(f', "{gone.key}"', ""))
        await console.do(SetWeight(cluster.decode[0].key, 0.5))
        theirs = await console.shown(lambda one: one.source == "config.toml edited" and one.ended)
        assert done(theirs)
        assert theirs.plan.title.startswith("config.toml edited: decode.workers: ")
        assert gone.url not in cluster.routers[0].urls
        await asyncio.sleep(5.0)
        assert len(edited(console)) == 1


@virtual
async def test_own_writes_are_not_announced_and_returning_contents_are_told_apart(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker = cluster.decode[0]
        first = cluster.text
        assert done(await console.do(SetWeight(worker.key, 0.5)))
        ours = cluster.text
        await asyncio.sleep(3.0)
        assert done(await console.do(Undo()))
        assert cluster.text == first
        await asyncio.sleep(5.0)
        assert edited(console) == []
        cluster.write(ours)  # what we once wrote, by somebody else
        told = await console.shown(lambda one: one.source == "config.toml edited")
        assert "weight" in told.plan.title
        cluster.write(first)
        await console.until(lambda: len(edited(console)) == 2)


@virtual
async def test_our_change_and_its_undoing_within_an_instant_leave_nothing_behind(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        first = cluster.text
        await console.do(SetWeight(cluster.decode[0].key, 0.5))
        ours = cluster.text
        await console.do(Undo())
        assert cluster.text == first
        await asyncio.sleep(5.0)
        cluster.write(ours)
        await console.shown(lambda one: one.source == "config.toml edited")


@virtual
async def test_a_hand_that_puts_the_file_back_at_once_is_noticed(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, before = cluster.decode[0], cluster.text
        worker.running = 5
        operation = await console.do(Drain((worker.key,)))
        cluster.write(before)  # who follows the file sees no change at all
        assert (await console.ended(operation)).outcome is Outcome.CANCELLED
        told = await console.shown(lambda one: one.source == "config.toml edited" and one.ended)
        assert done(told)
        assert worker.url in cluster.routers[0].urls
        await console.until(lambda: console.view.drains == ())


@virtual
async def test_a_broken_file_changes_nothing_and_stays_loud(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        good = cluster.text
        cluster.write(good.replace("0.30", "30"))
        await console.until(lambda: console.monitor.latest().config_error != "")
        await asyncio.sleep(20.0)
        assert "cache_aware_threshold = 30" in console.monitor.latest().config_error
        assert (console.view.operations, cluster.routers[0].model.writes) == ((), [])
        refused = await console.do(Drain((cluster.decode[0].key,)))
        assert refused.outcome is Outcome.REFUSED
        assert "broken_config" in [guard.kind for guard in refused.plan.guards]
        mended = await console.do(THRESHOLD)
        assert "0.45" in cluster.text
        assert mended.outcome in (Outcome.DONE, Outcome.ACCEPTED_NOT_APPLIED)
        await console.until(lambda: console.monitor.latest().config_error == "")
        assert edited(console) == []


@virtual
async def test_a_read_only_console_sends_nothing_on_a_hand_edit(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console(Arming(True)) as console:
        gone = cluster.decode[2]
        cluster.write(cluster.text.replace(f', "{gone.key}"', ""))
        await console.until(
            lambda: any(one.kind == "not_in_config" for one in console.monitor.latest().drift)
        )
        await asyncio.sleep(20.0)
        assert console.view.operations == ()
        assert cluster.routers[0].model.writes == []
        assert console.log == ()


@virtual
async def test_a_comment_is_no_operation(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        cluster.write("# night shift: careful\n" + cluster.text)
        await asyncio.sleep(5.0)
        assert console.view.operations == ()
        assert done(await console.do(SetWeight(cluster.decode[0].key, 0.5)))


@virtual
async def test_undo_restores_the_bytes_and_goes_one_further_back_each_time(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, texts = cluster.decode[0].key, [cluster.text]
        assert console.view.undoable == ""
        for weight in (0.5, 0.25):
            assert done(await console.do(SetWeight(worker, weight)))
            texts.append(cluster.text)
        await console.until(lambda: console.view.undoable.endswith("to 0.25"))
        plan = await console.plan(Undo())
        assert plan.title == f"Undo: Set the weight of decode worker {worker} to 0.25"
        assert "-weight = 0.25" in plan.diff
        assert done(await console.settled(console.operator.start(plan)))
        assert cluster.text == texts[1]
        assert done(await console.do(Undo()))
        assert cluster.text == texts[0]
        nothing = await console.do(Undo())
        assert (nothing.outcome, nothing.words) == (
            Outcome.REFUSED,
            "nothing that pdtop changed here can be taken back",
        )
        outcomes = [(e.operation, e.undone_by != "") for e in console.log if e.outcome == "done"]
        assert outcomes == [("undo", False), ("undo", False), ("weight", True), ("weight", True)]


@virtual
async def test_undo_after_others_changed_other_keys_or_the_same(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker = cluster.decode[0].key
        await console.do(SetWeight(worker, 0.5))
        cluster.write(cluster.text.replace('policy = "round_robin"', 'policy = "random"'))
        plan = await console.plan(Undo())
        assert "what others changed since stays" in dict(plan.rows)["Then"]
        await console.settled(console.operator.start(plan))
        assert "weight" not in cluster.text
        assert 'policy = "random"' in cluster.text
        await console.do(SetWeight(worker, 0.75))
        cluster.write(cluster.text.replace("weight = 0.75", "weight = 2.0"))
        refused = await console.do(Undo())
        assert refused.outcome is Outcome.REFUSED
        assert "changed by somebody else after" in refused.words
        assert "weight = 2.0" in cluster.text


@virtual
async def test_undo_of_a_drain_puts_the_worker_back_at_the_router(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, before = cluster.prefill[0], cluster.text
        worker.running = 1
        operation = await console.do(Drain((worker.key,)))
        await console.until(lambda: console.view.undoable != "")
        assert done(await console.do(Undo()))
        assert cluster.text == before
        assert worker.url in cluster.routers[0].urls
        assert cluster.routers[0].model.bodies[-1]["bootstrap_port"] == 8998
        assert (await console.ended(operation)).outcome is Outcome.CANCELLED
        assert not console.view.drains
        assert [one.worker for one in console.view.readmissions] == [worker.key]
        await console.do(Drain((worker.key,)))
        assert done(await console.do(Undrain((worker.key,))))
        assert (await console.plan(Undo())).title.startswith("Undo: Undrain")
        assert (await console.do(Undo())).ended
        assert worker.url not in cluster.routers[0].urls
        assert [one.worker for one in console.view.drains] == [worker.key]


@virtual
async def test_undo_is_guarded_as_what_it_does(tmp_path: Path) -> None:
    async with plant(tmp_path, decode=2) as cluster, cluster.console() as console:
        worker, other = cluster.decode
        await console.do(Drain((worker.key,)))
        await console.do(Undrain((worker.key,)))
        await console.until(lambda: worker.key not in console.unusable)
        plan = await console.plan(Undo())
        assert plan.overrides == ()
        cluster.routers[0].model.workers[other.url]["is_healthy"] = False
        await console.until(lambda: other.key in console.unusable)
        refused = await console.ended(console.operator.start(plan))
        assert refused.outcome is Outcome.REFUSED
        assert "is the last usable decode worker" in refused.words
        assert "drain" not in cluster.text


# By hand, with the real file events ------------------------------------------------------------------------


def renamed(path: Path, text: str) -> None:
    new = path.with_name("config.toml~")
    new.write_text(text)
    new.replace(path)


def truncated(path: Path, text: str) -> None:
    with path.open("r+") as file:
        file.truncate(0)
        file.flush()
        file.write(text[:20])
        file.flush()
        file.write(text[20:])


def sed(path: Path, text: str) -> None:
    subprocess.run(["sed", "-i", "s/0\\.30/0.35/", str(path)], check=True)
    assert path.read_text() == text


def swapped(path: Path, text: str) -> None:
    """As kubelet does with a ConfigMap: config.toml -> ..data/config.toml, ..data -> a folder."""
    folder = path.parent
    new = folder / "..2026_02"
    new.mkdir()
    (new / "config.toml").write_text(text)
    (folder / "..data_tmp").symlink_to(new.name)
    (folder / "..data_tmp").rename(folder / "..data")


def as_config_map(path: Path) -> None:
    first = path.parent / "..2026_01"
    first.mkdir()
    shutil.move(path, first / "config.toml")
    (path.parent / "..data").symlink_to(first.name)
    path.symlink_to(Path("..data") / "config.toml")


@pytest.mark.parametrize("by_hand", [renamed, truncated, sed, swapped])
def test_an_edit_by_hand_is_one_operation_with_its_diff(
    tmp_path: Path, by_hand: Callable[[Path, str], None]
) -> None:
    asyncio.run(_edited_by_hand(tmp_path, by_hand))


async def _edited_by_hand(folder: Path, by_hand: Callable[[Path, str], None]) -> None:
    async with plant(folder, real=True) as cluster:
        if by_hand is swapped:
            as_config_map(cluster.path)
        async with cluster.console() as console:
            before = cluster.text
            by_hand(cluster.path, before.replace("0.30", "0.35"))
            told = await console.shown(lambda one: one.source == "config.toml edited" and one.ended)
            assert told.plan.title == "config.toml edited: prefill.cache_aware_threshold: 0.3 → 0.35"
            assert "-cache_aware_threshold = 0.30  # tuned in May" in told.plan.diff
            assert "+cache_aware_threshold = 0.35  # tuned in May" in told.plan.diff
            assert len(edited(console)) == 1
            (entry,) = console.log
            assert (entry.operation, entry.source) == ("apply", "config.toml edited")
