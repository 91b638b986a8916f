"""What goes wrong inside: a state folder that cannot be written, a bug, an engine that nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtop.config.changes import Change
from pdtop.config.load import load_bytes
from pdtop.operations.applying import Applied, Applier
from pdtop.operations.config_file import Written
from pdtop.operations.executing import Job, _sum_up
from pdtop.operations.model import (
    Drain,
    Guard,
    Operation,
    Outcome,
    Phase,
    Plan,
    RouterOutcome,
    SetWeight,
    Undo,
)
from pdtop.operations.state import StateFolder, StateUnwritable
from pdtop.routers.control import Call
from tests.operations.plant import done, plant, virtual


@virtual
async def test_what_cannot_be_logged_is_not_done(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        before = cluster.text

        def full(self: StateFolder, name: str, line: bytes) -> None:
            raise StateUnwritable("the state folder cannot be written: no space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StateFolder, "append", full)
            refused = await console.do(Drain((cluster.decode[0].key,)))
        assert refused.outcome is Outcome.REFUSED
        assert "no space left on device" in refused.words
        assert refused.next_step == "mend the state folder: what is done must be logged"
        assert (cluster.text, cluster.routers[0].model.writes) == (before, [])


@virtual
async def test_an_outcome_that_cannot_be_logged_is_told_as_such(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        honest = StateFolder.append

        def fills(self: StateFolder, name: str, line: bytes) -> None:
            if b'"event":"end"' in line:
                raise StateUnwritable("no space left on device")
            honest(self, name, line)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StateFolder, "append", fills)
            ended = await console.do(SetWeight(cluster.decode[0].key, 0.5))
        assert ended.outcome in (Outcome.DONE, Outcome.ACCEPTED_NOT_APPLIED)
        assert ended.words.endswith("; not in the log: no space left on device")
        assert "weight = 0.5" in cluster.text


@virtual
async def test_a_bug_ends_the_operation_and_nothing_else(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:

        async def broken(self: Applier, *arguments: object) -> None:
            raise ZeroDivisionError("made up")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Applier, "apply", broken)
            failed = await console.do(SetWeight(cluster.decode[0].key, 0.5))
        assert (failed.outcome, failed.words) == (
            Outcome.FAILED,
            "internal error: ZeroDivisionError: made up",
        )
        assert (console.log[0].outcome, console.log[0].undoable) == ("failed", True)
        assert done(await console.do(Undo()))
        assert "weight" not in cluster.text


UNTOLD = Guard("router", "r: workers cannot be changed through this router", "see the router", blocks=False)
HELD_BACK = Guard("last_of_pool", "a:1 is the last usable decode worker", "bring another one back first")
WROTE = Call("r", "DELETE", "/workers/1", 202)


def at(router: str, outcome: Outcome, words: str = "", fix: str = "", *calls: Call) -> RouterOutcome:
    return RouterOutcome(router, outcome, words, fix, calls)


@pytest.mark.parametrize(
    ("applied", "expected"),
    [
        (Applied(), (Outcome.DONE, "written; no router is watched", "")),
        (Applied((at("r", Outcome.DONE, "read back"),)), (Outcome.DONE, "read back", "")),
        (
            Applied((at("r", Outcome.DONE), at("s", Outcome.TIMED_OUT, "no answer", "see it"))),
            (Outcome.PARTLY_DONE, "s: no answer", "see it"),
        ),
        (
            Applied((at("r", Outcome.TIMED_OUT, "no answer"), at("s", Outcome.FAILED, "broken", "mend it"))),
            (Outcome.FAILED, "r: no answer; s: broken", "mend it"),
        ),
        (
            Applied((at("r", Outcome.REFUSED, "403", "a key"), at("s", Outcome.TIMED_OUT, "no answer"))),
            (Outcome.REFUSED, "r: 403; s: no answer", "a key"),
        ),
        (Applied((at("r", Outcome.DONE), at("s", Outcome.DONE))), (Outcome.DONE, "done at 2 routers", "")),
        (
            Applied((at("r", Outcome.DONE, "nothing to do there"),), untold=(UNTOLD,)),
            (Outcome.ACCEPTED_NOT_APPLIED, f"written; {UNTOLD.text}", "see the router"),
        ),
        (
            Applied((at("r", Outcome.DONE), at("s", Outcome.DONE)), untold=(UNTOLD,)),
            (Outcome.PARTLY_DONE, f"written; {UNTOLD.text}", "see the router"),
        ),
        (
            Applied((at("r", Outcome.DONE, "nothing to do there"),), (HELD_BACK,)),
            (
                Outcome.REFUSED,
                f"{HELD_BACK.text} ({HELD_BACK.to_change}); nothing to do there; config.toml is as it was",
                "",
            ),
        ),
        (
            Applied((at("r", Outcome.DONE, "1 of 2", "", WROTE),), (HELD_BACK,)),
            (Outcome.PARTLY_DONE, f"{HELD_BACK.text} ({HELD_BACK.to_change}); 1 of 2", ""),
        ),
        (
            Applied((at("r", Outcome.DONE),), restart=(Change("decode.policy", "a", "b"),)),
            (
                Outcome.ACCEPTED_NOT_APPLIED,
                "written; decode.policy counts only after a restart of the router",
                "c: the restart plan",
            ),
        ),
    ],
)
def test_all_that_came_of_it_as_one(applied: Applied, expected: tuple[Outcome, str, str]) -> None:
    plan = Plan(Drain(("a:1",)), "Drain", "prod")
    assert _sum_up(Job(Operation("1", plan, Phase.APPLYING), applied=applied)) == expected


def test_refused_means_that_nothing_was_changed(tmp_path: Path) -> None:
    plan = Plan(Drain(("a:1",)), "Drain", "prod")
    loaded = load_bytes(tmp_path / "config.toml", b"")
    applied = Applied((at("r", Outcome.REFUSED, "403"), at("s", Outcome.TIMED_OUT, "no answer")))
    job = Job(Operation("1", plan, Phase.APPLYING), written=Written(loaded, loaded, None), applied=applied)
    assert _sum_up(job)[:2] == (Outcome.FAILED, "r: 403; s: no answer")
