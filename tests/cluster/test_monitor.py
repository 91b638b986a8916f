"""The engine's thread: snapshots arrive, the config is followed, nothing dies in silence, stop means stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pdtop.cluster import monitor as monitor_module
from pdtop.cluster.board import Board
from pdtop.cluster.launch import targets_of
from pdtop.cluster.model import Role, Snapshot, State
from pdtop.cluster.monitor import Monitor
from pdtop.cluster.targets import PollSettings, Targets, WorkerTarget, from_lists
from pdtop.config.load import load
from tests.cluster.story import page
from tests.cluster.stub_server import Reply, Request, StubServer

PATIENCE_S = 20.0
PAGE = page(
    num_running_reqs=5, num_queue_reqs=0, num_decode_prealloc_queue_reqs=0, num_decode_transfer_queue_reqs=1
)


def worker(request: Request) -> Reply:
    if request.route == "/metrics":
        return Reply(200, {"content-type": "text/plain"}, PAGE.encode())
    if request.route == "/ready":
        return Reply(200)
    return Reply(404)


@pytest.fixture
async def stub() -> AsyncIterator[StubServer]:
    async with StubServer(worker) as server:
        yield server


def targets(*ports: int) -> Targets:
    lists = from_lists([], [f"127.0.0.1:{port}" for port in ports], environ={})
    return replace(lists, settings=PollSettings(interval_s=0.2, timeout_s=1.0))


async def seen(monitor: Monitor, holds: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot of which this holds."""
    arrived: asyncio.Queue[Snapshot] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    leave = monitor.subscribe(lambda snapshot: loop.call_soon_threadsafe(arrived.put_nowait, snapshot))
    try:
        async with asyncio.timeout(PATIENCE_S):
            snapshot = monitor.latest()
            while not holds(snapshot):
                snapshot = await arrived.get()
            return snapshot
    finally:
        leave()


async def stopped(monitor: Monitor) -> None:
    await asyncio.to_thread(monitor.stop)


async def test_snapshots_arrive_from_a_thread_of_their_own(stub: StubServer) -> None:
    monitor = Monitor(targets(stub.port), tick_s=0.05)
    threads: list[str] = []
    monitor.subscribe(lambda _: threads.append(threading.current_thread().name))
    assert monitor.latest().workers == ()
    monitor.start()
    try:
        assert await asyncio.to_thread(monitor.wait_first_round, PATIENCE_S)
        snapshot = await seen(monitor, lambda s: bool(s.workers) and s.workers[0].running == 5)
        only = snapshot.workers[0]
        assert (only.key, only.role, only.state) == (f"127.0.0.1:{stub.port}", Role.DECODE, State.OK)
        assert only.usable is True
        assert snapshot.decode.backlog.total == 1
        await seen(monitor, lambda s: s.number > snapshot.number and len(s.decode.trends["running"]) >= 3)
        history = monitor.history(only.key)
        assert history is not None
        assert history.interval_s == 0.05
        assert set(history.series["running"]) - {None} == {5.0}
        assert monitor.history("nobody") is None
        taken = await asyncio.to_thread(monitor.take)
        assert taken.workers[0].running == 5
    finally:
        await stopped(monitor)
    assert set(threads) == {"pdtop-engine"}


async def test_stop_ends_the_thread_and_may_be_called_twice_or_without_a_start(stub: StubServer) -> None:
    monitor = Monitor(targets(stub.port))
    monitor.stop()
    monitor = Monitor(targets(stub.port), tick_s=0.05)
    monitor.start()
    await seen(monitor, lambda s: bool(s.workers))
    await stopped(monitor)
    await stopped(monitor)
    assert "pdtop-engine" not in {thread.name for thread in threading.enumerate()}
    assert monitor.take() is monitor.latest()
    monitor.set_interval(5.0)  # to nobody
    with pytest.raises(RuntimeError, match="started before"):
        monitor.start()


async def test_a_raw_page_is_fetched_when_somebody_asks_for_it(stub: StubServer) -> None:
    monitor = Monitor(targets(stub.port), tick_s=0.05)
    monitor.start()
    key = f"127.0.0.1:{stub.port}"
    try:
        await seen(monitor, lambda s: bool(s.workers))
        assert monitor.raw_page(key) is None
        await seen(monitor, lambda _: monitor.raw_page(key) is not None)
        assert monitor.raw_page(key) == PAGE
        assert monitor.raw_page("nobody") is None
    finally:
        await stopped(monitor)


async def test_the_interval_changes_while_it_runs(stub: StubServer) -> None:
    monitor = Monitor(targets(stub.port), tick_s=0.05)
    monitor.start()
    try:
        monitor.set_interval(30.0)
        snapshot = await seen(monitor, lambda s: s.interval_s == 30.0)
        assert snapshot.interval_s == 30.0
    finally:
        await stopped(monitor)


async def test_an_error_inside_is_said_and_polling_goes_on(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_module, "RESTART_S", (0.05,))
    broken = threading.Event()
    broken.set()
    honest = Board.snapshot

    def snapshot(self: Board, now: float, wall: float, span: object, *, tick: bool = True) -> Snapshot:
        if broken.is_set():
            raise ZeroDivisionError("made up")
        return honest(self, now, wall, 30.0, tick=tick)

    monkeypatch.setattr(Board, "snapshot", snapshot)
    monitor = Monitor(targets(stub.port), tick_s=0.05)
    monitor.start()
    try:
        told = await seen(monitor, lambda s: any("ZeroDivisionError('made up')" in n for n in s.notices))
        assert any("polling again in" in notice for notice in told.notices)
        broken.clear()
        well = await seen(monitor, lambda s: bool(s.workers) and s.workers[0].running == 5)
        assert any("made up" in notice for notice in well.notices)
    finally:
        await stopped(monitor)


async def test_a_subscriber_that_fails_disturbs_nobody(stub: StubServer) -> None:
    monitor = Monitor(targets(stub.port), tick_s=0.05)

    def fails(_: Snapshot) -> None:
        raise OSError("screen gone")

    monitor.subscribe(fails)
    monitor.start()
    try:
        await seen(monitor, lambda s: bool(s.workers) and s.workers[0].running == 5)
    finally:
        await stopped(monitor)


def config(path: Path, port: int, interval: str = "0.2") -> Path:
    path.write_text(
        f'[prefill]\nworkers = []\n[decode]\nworkers = ["127.0.0.1:{port}"]\n'
        f"[console]\ninterval_secs = {interval}\n[slo]\nttft_p99_ms = 800\n"
    )
    return path


async def test_a_good_change_of_the_config_takes_effect_and_a_bad_one_is_a_red_line(
    stub: StubServer, tmp_path: Path
) -> None:
    path = config(tmp_path / "prod.toml", stub.port)
    loaded = load(path)
    assert loaded.config is not None
    monitor = Monitor(targets_of(loaded.config, path), loaded=loaded, tick_s=0.05)
    monitor.start()
    try:
        first = await seen(monitor, lambda s: len(s.workers) == 1)
        assert first.cluster == "prod"
        assert first.goodput is not None
        path.write_text(path.read_text().replace("workers = []", 'workers = ["127.0.0.1:9"]'))
        more = await seen(monitor, lambda s: len(s.workers) == 2)
        assert {one.role for one in more.workers} == {Role.PREFILL, Role.DECODE}
        good = path.read_text()
        path.write_text(good + "ttft_p99_ms = 1\n")
        red = await seen(monitor, lambda s: bool(s.config_error))
        assert "line 8" in red.config_error
        assert [f.kind for f in red.findings if f.kind == "config_broken"] == ["config_broken"]
        assert len(red.workers) == 2
        path.write_text(good)
        assert (await seen(monitor, lambda s: not s.config_error)).workers
    finally:
        await stopped(monitor)


async def test_an_interval_from_the_command_line_outlives_a_reload(stub: StubServer, tmp_path: Path) -> None:
    path = config(tmp_path / "prod.toml", stub.port, "5.0")
    loaded = load(path)
    watched = targets(stub.port)
    monitor = Monitor(
        replace(watched, settings=replace(watched.settings, interval_s=0.3)), loaded=loaded, tick_s=0.05
    )
    monitor.start()
    try:
        await seen(monitor, lambda s: bool(s.workers))
        path.write_text(path.read_text().replace("800", "900"))
        snapshot = await seen(monitor, lambda s: s.goodput is not None and s.goodput.ttft_target_s == 0.9)
        assert snapshot.interval_s == 0.3
    finally:
        await stopped(monitor)


async def test_a_literal_key_in_the_file_is_a_finding_that_does_not_show_it(
    stub: StubServer, tmp_path: Path
) -> None:
    path = config(tmp_path / "prod.toml", stub.port)
    path.write_text(path.read_text() + '[server]\napi_key = "sk-made-up-0123456789"\n')
    loaded = load(path)
    monitor = Monitor(targets(stub.port), loaded=loaded, tick_s=0.05)
    monitor.start()
    try:
        snapshot = await seen(monitor, lambda s: any(f.kind == "secret_in_file" for f in s.findings))
        assert "sk-made-up" not in repr(snapshot)
    finally:
        await stopped(monitor)


def test_a_worker_target_is_known_by_its_key() -> None:
    board = Board()
    one = targets(1).workers[0]
    assert isinstance(one, WorkerTarget)
    board.workers_changed((one,), ())
    assert board.target(one.key) is one
    assert board.target("nobody") is None


def hangs(request: Request) -> Reply:
    return Reply(hang=True) if request.route == "/ready" else worker(request)


async def test_one_endpoint_that_never_answers_does_not_keep_the_clock_from_ticking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitor_module, "EARLY_S", 0.1)
    async with StubServer(hangs) as slow:
        monitor = Monitor(targets(slow.port), tick_s=0.05)
        monitor.start()
        try:
            snapshot = await seen(monitor, lambda s: len(s.decode.trends.get("running", ())) >= 3)
            assert snapshot.workers[0].running == 5
            assert not monitor.wait_first_round(0.0)
        finally:
            await stopped(monitor)
