"""What fails around an operation while it is carried out: folders, and routers that answer nonsense."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pdtop.operations.model import Choice, Drain, Outcome, Phase, Undrain
from tests.cluster.stub_server import Reply
from tests.cluster.stub_server import Request as Asked
from tests.operations.plant import Plant, StubRouter, done, plant, virtual


def state_folder(cluster: Plant) -> Path:
    (folder,) = (cluster.folder / "state" / "clusters").iterdir()
    return folder


def left_behind(cluster: Plant) -> list[Path]:
    return list(cluster.folder.glob(".config.toml.pdtop-*"))


def talks_nonsense(router: StubRouter, method: str) -> None:
    """Requests of this method get a page of some proxy."""
    answer = router.answer

    async def nonsense(request: Asked) -> Reply:
        if request.method == method:
            return Reply(200, {"content-type": "text/html"}, b"<html>\x1b[31mhello\x1b]0;x\x07</html>")
        return await answer(request)

    router.answer = nonsense  # type: ignore[method-assign]


@virtual
async def test_what_a_router_knew_cannot_be_kept_so_nothing_is_done(tmp_path: Path) -> None:
    async with plant(tmp_path, routers=2) as cluster, cluster.console() as console:
        worker, before = cluster.decode[0], cluster.text
        (state_folder(cluster) / "specs").write_text("in the way")
        refused = await console.do(Drain((worker.key,)))
        assert refused.outcome is Outcome.REFUSED
        assert "the state folder cannot be written" in refused.words
        assert "config.toml is as it was" in refused.words
        assert cluster.text == before
        assert all(worker.url in router.urls for router in cluster.routers)
        assert console.log[0].outcome == "refused"


@virtual
async def test_a_router_that_could_not_be_read_is_told_when_it_can(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, router = cluster.decode[0], cluster.routers[0]
        assert (await console.do(Drain((worker.key,)))).outcome is None
        well = router.answer
        talks_nonsense(router, "GET")
        failed = await console.do(Undrain((worker.key,)))
        assert failed.outcome is Outcome.FAILED
        assert failed.words == "its worker list cannot be read: 200, but there is no list in it"
        assert worker.url not in router.urls
        router.answer = well  # type: ignore[method-assign]
        told = await console.shown(lambda one: one.source == "reassert" and one.ended)
        assert done(told), told
        assert worker.url in router.urls


@virtual
async def test_nothing_of_a_router_can_move_a_cursor(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        router = cluster.routers[0]
        router.refuses, router.says = 500, "\x1b[2J\x1b]0;x\x07 \u202e[bold]no[/bold]\r\nX: y"
        failed = await console.do(Drain((cluster.decode[0].key,)))
        assert failed.outcome is Outcome.REFUSED
        told = [failed.words, *(call.words for one in failed.routers for call in one.calls)]
        told += [console.log[0].words, *(call.words for call in console.log[0].calls)]
        assert all(words.isprintable() for words in told), told


@virtual
@pytest.mark.parametrize("what", ["pipe", "folder", "loop", "gone"])
async def test_a_file_that_has_become_something_else_while_the_question_was_open(
    tmp_path: Path, what: str
) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        worker, before = cluster.decode[0], cluster.text
        plan = await console.plan(Drain((worker.key,)))
        cluster.path.unlink()
        match what:
            case "pipe":
                os.mkfifo(cluster.path)
            case "folder":
                cluster.path.mkdir()
            case "loop":
                cluster.path.symlink_to(cluster.path.name)
        refused = await console.settled(console.operator.start(plan))
        assert refused.outcome is Outcome.REFUSED, refused
        assert worker.url in cluster.routers[0].urls
        await console.until(lambda: console.monitor.latest().config_error != "")
        assert left_behind(cluster) == []
        if what == "folder":
            cluster.path.rmdir()
        cluster.path.unlink(missing_ok=True)
        cluster.path.write_text(before)
        await console.until(lambda: console.monitor.latest().config_error == "")
        assert (await console.do(Drain((worker.key,)))).phase is Phase.DRAINING


@virtual
async def test_an_answer_that_fails_is_in_the_log_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with plant(tmp_path) as cluster, cluster.console() as console:
        cluster.decode[0].running = 3
        waiting = await console.do(Drain((cluster.decode[0].key,)))

        def broken(_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(console.operator, "plan", broken)
        console.operator.choose(waiting.id, Choice.CANCEL)
        await console.until(lambda: "work of the gate failed" in caplog.text)
        assert "ZeroDivisionError" in caplog.text
        assert console.view.operations[-1].phase is Phase.DRAINING  # and the drain goes on
