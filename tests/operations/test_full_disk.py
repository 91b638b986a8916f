"""Disks that are full, read-only or gone, at every step of a change: nothing half written, nothing hidden."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pdtop.cluster.readings import Answer
from pdtop.config.disk import Disk
from pdtop.config.load import load
from pdtop.operations.edits import after_edits
from pdtop.operations.model import Drain, Operation, Outcome, Phase, Undrain
from tests.operations.plant import Plant, plant, virtual
from tests.routers.model_router import reply

STEPS = ("create", "append", "write", "sync", "replace")


class Full:
    """A disk with room for so many more steps, None: for all. ``once``: only the next one fails.

    ``concerns``: files that are on this disk.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self.once = False
        self.concerns: Callable[[Path], bool] = lambda path: True
        for step in STEPS:
            monkeypatch.setattr(Disk, step, self._limited(getattr(Disk, step)))

    def _limited(self, real: Callable[..., object]) -> Callable[..., object]:
        def limited(disk: Disk, where: Path | int, *more: object) -> object:
            path = where if isinstance(where, Path) else Path(f"/proc/self/fd/{where}").readlink()
            if self.room is None or not self.concerns(path):
                return real(disk, where, *more)
            self.room -= 1
            if self.room >= 0:
                return real(disk, where, *more)
            if self.once:
                self.room = None
            if more and isinstance(more[0], bytes):
                real(disk, where, more[0][: len(more[0]) // 2])  # what still fits
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return limited


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    return Full(monkeypatch)


def sound(cluster: Plant, operation: Operation, before: str, after: str) -> None:
    router, worker = cluster.routers[0], cluster.decode[0]
    where = (operation.phase, operation.outcome, operation.words)
    assert load(cluster.path).ok
    assert cluster.text in (before, after), where
    assert list(cluster.folder.glob(".config.toml.pdtop-*")) == []
    assert "internal error" not in operation.words
    if operation.outcome is Outcome.REFUSED:
        assert (cluster.text, router.model.writes) == (before, []), where
    if cluster.text == before:
        assert worker.url in router.urls, where
        assert operation.phase is Phase.ENDED, where
    if operation.phase is Phase.ENDED:
        assert operation.words
        assert operation.next_step, where
    elif worker.url in router.urls:
        assert "config.toml could not be put back: no space left on device" in operation.words, where


@pytest.mark.parametrize(
    ("refuses", "once", "rooms"),
    [
        (None, False, range(12)),
        (None, False, range(12, 24)),
        (None, True, range(6, 22, 2)),
        (500, False, range(16, 32)),
        (500, True, range(14, 32, 2)),
    ],
)
@virtual
async def test_full_at_every_step(
    tmp_path: Path, full: Full, rooms: range, once: bool, refuses: int | None
) -> None:
    for room in rooms:
        (tmp_path / str(room)).mkdir()
        async with plant(tmp_path / str(room)) as cluster, cluster.console() as console:
            worker, before = cluster.decode[0], cluster.text
            worker.running = 2
            plan = await console.plan(Drain((worker.key,)))
            after = after_edits(load(cluster.path), plan.edits).text
            cluster.routers[0].refuses = refuses
            full.room, full.once = room, once
            operation = await console.settled(console.operator.start(plan))
            full.room = None
            sound(cluster, operation, before, after)


@pytest.mark.parametrize("room", [0, 1, 6, 9, 12])
@virtual
async def test_after_a_full_disk_all_is_as_before(tmp_path: Path, full: Full, room: int) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, before = cluster.decode[0], cluster.text
        full.room = room
        failed = await console.do(Drain((worker.key,)))
        assert failed.ended
        assert "no space left on device" in failed.words
        full.room = None
        assert (await console.do(Drain((worker.key,)))).phase is Phase.DRAINING
        assert (await console.do(Undrain((worker.key,)))).outcome is Outcome.DONE
        assert cluster.text == before
        assert worker.url in cluster.routers[0].urls


@virtual
async def test_the_file_is_put_back_although_the_state_folder_is_full(tmp_path: Path, full: Full) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, before = cluster.decode[0], cluster.text
        full.concerns = lambda path: "specs" in path.parts
        full.room = 0
        refused = await console.do(Drain((worker.key,)))
        full.concerns = lambda path: tmp_path / "state" in path.parents
        assert refused.outcome is Outcome.REFUSED
        assert cluster.text == before
        assert cluster.routers[0].model.writes == []


@virtual
async def test_full_from_the_refusal_on_the_file_is_put_back(tmp_path: Path, full: Full) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, before, router = cluster.decode[0], cluster.text, cluster.routers[0]

        def fill(method: str, path: str, body: object) -> Answer | None:
            if method != "DELETE":
                return None
            full.room = 0
            return reply(500, {"error": "no"})

        full.concerns = lambda path: tmp_path / "state" in path.parents
        router.model.answering = fill
        refused = await console.do(Drain((worker.key,)))
        assert refused.outcome is Outcome.REFUSED
        assert "not removed: 500" in refused.words
        assert "config.toml is as it was; not in the log" in refused.words
        assert cluster.text == before


def not_writable(cluster: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "writable", lambda disk, path: path != cluster.path)


def no_folder(cluster: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(cluster.folder)


def no_writing_in_the_folder(cluster: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "writable", lambda disk, path: path != cluster.folder)


def no_writing_in_the_state_folder(cluster: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "writable", lambda disk, path: "state" not in path.parts)


def a_file_in_place_of_the_state_folder(cluster: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(cluster.folder.parent / "state")
    (cluster.folder.parent / "state").touch()


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (not_writable, "permission denied"),
        (no_folder, ""),
        (no_writing_in_the_folder, "permission denied"),
        (no_writing_in_the_state_folder, "permission denied: the state folder"),
        (a_file_in_place_of_the_state_folder, "the state folder cannot be written"),
    ],
)
@pytest.mark.parametrize("planned", ["before", "after"])
@virtual
async def test_what_cannot_be_written_is_not_done(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[Plant, pytest.MonkeyPatch], None],
    words: str,
    planned: str,
) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    async with plant(folder) as cluster, cluster.console(state="../state") as console:
        worker, before = cluster.decode[0], cluster.text
        if planned == "after":
            breaks(cluster, monkeypatch)
        plan = await console.plan(Drain((worker.key,)))
        if planned == "before":
            breaks(cluster, monkeypatch)
        operation = await console.settled(console.operator.start(plan))
        assert operation.outcome in (Outcome.REFUSED, Outcome.FAILED)
        assert words in operation.words
        assert "internal error" not in operation.words
        assert operation.next_step, operation
        assert cluster.routers[0].model.writes == []
        assert not cluster.path.exists() or cluster.text == before
