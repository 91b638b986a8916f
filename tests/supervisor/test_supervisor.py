"""The supervisor over routers in miniature: hand-over, crashes, bad files, keys, the end."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

import pdtop.supervisor.supervisor as supervising
from pdtop.config.watch import Event
from pdtop.supervisor.engines import CannotRun
from pdtop.supervisor.manifest import Manifest
from pdtop.supervisor.supervisor import Supervisor
from tests.supervisor.engines.fake_router import BAD
from tests.supervisor.scenes import D1, D2, ENGINES, P1, P2, free_ports, supervised

BOTH = pytest.mark.parametrize("engine", ["smg", "sglang-router"])
KEY, ADMIN_KEY = "sk-test-supervisor-key", "sk-test-supervisor-admin"


@pytest.fixture(autouse=True)
def engines_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ENGINES))


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def of_process(pid: int) -> str:
    """What others can read of a process: its command line and, of the same user, its environment."""
    return "".join(Path(f"/proc/{pid}/{name}").read_bytes().decode() for name in ("cmdline", "environ"))


@BOTH
async def test_a_restart_only_key_is_changed_and_no_client_notices(engine: str, tmp_path: Path) -> None:
    async with supervised(tmp_path, engine) as scene:
        old = await scene.pid()
        kept = await scene.connect()
        assert await kept.stream() == f"data: {old}\n\n" * 3 + "data: [DONE]\n\n"
        held = await scene.held_stream()

        scene.file.timeout = 101
        scene.file.write()
        await scene.until(lambda: scene.supervisor.status().hand_overs == 1)
        new = await scene.pid()
        assert new != old
        assert (await scene.about())["--request-timeout-secs"] == "101"
        await scene.until(lambda: [one.connections for one in scene.supervisor.status().former] == [1])
        assert await kept.stream() == f"data: {new}\n\n" * 3 + "data: [DONE]\n\n"
        assert not held.done()

        os.kill(old, signal.SIGUSR1)
        assert await held == f"data: {old}\n\n" * 3 + "data: [DONE]\n\n"
        await scene.until(lambda: not scene.supervisor.status().former)
        assert gone(old)
        status = scene.supervisor.status()
        assert (status.state, status.pid, status.restarts, status.held_out) == ("serving", new, 0, 0)
        assert status.pending == ()


@BOTH
async def test_scrapers_keep_their_address(engine: str, tmp_path: Path) -> None:
    async with supervised(tmp_path, engine) as scene:
        old = await scene.pid()
        first = await scene.connect(scene.file.metrics_port)
        assert json.loads(await first.ask("GET", "/metrics")) == {"pid": old}
        scene.file.timeout = 101
        scene.file.write()
        await scene.until(lambda: scene.supervisor.status().hand_overs == 1)
        second = await scene.connect(scene.file.metrics_port)
        assert json.loads(await second.ask("GET", "/metrics")) == {"pid": scene.supervisor.status().pid}


@BOTH
async def test_a_drained_worker_is_out_at_once_and_stays_out(engine: str, tmp_path: Path) -> None:
    async with supervised(tmp_path, engine) as scene:
        await scene.serves()
        assert await scene.workers() == {P1, P2, D1, D2}
        scene.file.drained = (D2,)
        scene.file.write()
        await scene.workers_are({P1, P2, D1})
        assert scene.supervisor.status().hand_overs == 0
        scene.file.timeout = 101
        scene.file.write()
        await scene.until(lambda: scene.supervisor.status().hand_overs == 1)
        # sglang-router had it on its command line (power_of_two wants two): it went before any request came.
        assert await scene.workers() == {P1, P2, D1}
        os.kill(await scene.pid(), signal.SIGKILL)
        await scene.until(lambda: scene.supervisor.status().restarts == 1)
        await scene.serves()
        assert await scene.workers() == {P1, P2, D1}
        scene.file.drained = ()
        scene.file.write()
        await scene.workers_are({P1, P2, D1, D2})


@BOTH
async def test_a_crash_is_said_and_connections_wait(engine: str, tmp_path: Path) -> None:
    async with supervised(tmp_path, engine) as scene:
        old = await scene.pid()
        os.kill(old, signal.SIGKILL)
        await scene.until(lambda: scene.supervisor.status().state == "down")
        new = await scene.pid()
        assert new != old
        status = scene.supervisor.status()
        assert (status.state, status.restarts, status.hand_overs) == ("serving", 1, 0)
        assert (status.last_restart_reason, status.held_out) == ("it was ended by SIGKILL", 0)
        assert f"{engine} (pid {old}) is gone: it was ended by SIGKILL" in scene.text()


@BOTH
async def test_a_file_that_the_engine_would_not_start_with_changes_nothing(
    engine: str, tmp_path: Path
) -> None:
    async with supervised(tmp_path, engine) as scene:
        old = await scene.pid()
        scene.file.policy = "pair_aware"
        scene.file.drained = (D2,)
        scene.file.write()
        await scene.until(lambda: bool(scene.supervisor.status().pending))
        (words,) = scene.supervisor.status().pending
        assert f"config.toml is not in force: {engine} has no prefill policy pair_aware" in words
        assert await scene.workers() == {P1, P2, D1, D2}
        assert await scene.pid() == old
        scene.file.policy = "round_robin"
        scene.file.write()
        await scene.until(lambda: scene.supervisor.status().hand_overs == 1)
        assert scene.supervisor.status().pending == ()
        await scene.workers_are({P1, P2, D1})


async def test_a_broken_file_is_told_until_it_is_repaired(tmp_path: Path) -> None:
    async with supervised(tmp_path, "smg") as scene:
        old = await scene.pid()
        scene.file.further = "[health]\ninterval_secs = 'often'"
        scene.file.write()
        await scene.until(lambda: bool(scene.supervisor.status().config_problems))
        assert "health.interval_secs" in scene.supervisor.status().config_problems[0]
        assert "the last good settings stay in force" in scene.text()
        assert await scene.pid() == old
        scene.file.further = ""
        scene.file.write()
        await scene.until(lambda: not scene.supervisor.status().config_problems)


@BOTH
async def test_a_successor_that_does_not_start_costs_nothing(engine: str, tmp_path: Path) -> None:
    async with supervised(tmp_path, engine) as scene:
        old = await scene.pid()
        scene.file.timeout = BAD
        scene.file.write()
        await scene.until(lambda: bool(scene.supervisor.status().failed))
        status = scene.supervisor.status()
        assert status.failed.endswith("it ended with code 1: error: timeout 13 is out of range")
        assert any("100 → 13" in words for words in status.pending)
        assert (status.state, status.pid, await scene.pid()) == ("serving", old, old)
        # Even if the one that serves dies now: what served last is started, after what the file says.
        os.kill(old, signal.SIGKILL)
        await scene.until(lambda: scene.supervisor.status().state == "down")
        assert await scene.pid() != old
        assert (await scene.about())["--request-timeout-secs"] == "100"
        scene.file.timeout = 102
        scene.file.write()
        await scene.until(lambda: scene.supervisor.status().hand_overs == 1)
        assert scene.supervisor.status().failed == ""


async def test_it_gives_up_when_it_never_started(tmp_path: Path) -> None:
    async with supervised(tmp_path, "smg", timeout_s=BAD) as scene:
        with pytest.raises(CannotRun) as told:
            await scene.running
        assert str(told.value) == (
            "smg does not start: it ended with code 1: error: timeout 13 is out of range"
        )


@BOTH
async def test_keys_reach_the_engine_and_nobody_else(engine: str, tmp_path: Path) -> None:
    keys = {"PDTOP_API_KEY": KEY, "PDTOP_ADMIN_KEY": ADMIN_KEY}
    async with supervised(tmp_path, engine, environ=keys) as scene:
        given = await scene.about()
        assert given["--api-key"] == KEY
        assert given["--control-plane-api-keys"] == f"pdtop:pdtop:admin:{ADMIN_KEY}"
        seen = of_process(await scene.pid())
        assert KEY not in seen
        assert ADMIN_KEY not in seen
        assert f"{engine} | router on " in scene.text()
        assert "with ••••••" in scene.text()
        shown = json.dumps(scene.supervisor.status().as_dict()) + scene.text()
        assert KEY not in shown
        assert ADMIN_KEY not in shown


async def test_health_settings_reach_smg_without_a_restart(tmp_path: Path) -> None:
    async with supervised(tmp_path, "smg") as scene:
        old = await scene.pid()
        scene.file.further = "[health]\ninterval_secs = 3"
        scene.file.write()
        await scene.until(lambda: "changed: [health]" in scene.text())
        about = await scene.get("/about")
        assert about["pid"] == old
        assert about["calls"].count("PATCH /workers") == 4
        assert scene.supervisor.status().hand_overs == 0


async def test_a_threshold_without_effect_restarts_nothing(tmp_path: Path) -> None:
    async with supervised(tmp_path, "sglang-router") as scene:
        await scene.serves()
        scene.file.further = '[decode.worker."' + D1 + '"]\nweight = 2'
        scene.file.write()
        await scene.until(lambda: "weights are left out" in scene.text())
        status = scene.supervisor.status()
        assert (status.hand_overs, status.pending) == (0, ())
        assert any("weights are left out" in words for words in status.not_honoured)


async def test_another_address_is_taken_without_a_restart(tmp_path: Path) -> None:
    async with supervised(tmp_path, "smg") as scene:
        old = await scene.pid()
        held = await scene.held_stream()
        before = scene.file.port
        scene.file.ports = (free_ports(1)[0], scene.file.metrics_port)
        scene.file.write()
        await scene.until(lambda: scene.supervisor.main.port == scene.file.port)
        assert await scene.pid() == old
        with pytest.raises(ConnectionError):
            await scene.connect(before)
        os.kill(old, signal.SIGUSR1)
        assert (await held).endswith("data: [DONE]\n\n")


@BOTH
async def test_the_engine_may_be_exchanged_for_the_other_one(engine: str, tmp_path: Path) -> None:
    async with supervised(tmp_path, engine) as scene:
        await scene.serves()
        held = await scene.held_stream()
        old = await scene.pid()
        scene.file.engine = "smg" if engine == "sglang-router" else "sglang-router"
        scene.file.write()
        await scene.until(lambda: scene.supervisor.status().hand_overs == 1)
        assert scene.supervisor.status().engine == scene.file.engine
        assert await scene.workers() == {P1, P2, D1, D2}
        os.kill(old, signal.SIGUSR1)
        assert (await held).endswith("data: [DONE]\n\n")


@BOTH
async def test_told_to_end_it_lets_streams_end_and_takes_no_more(engine: str, tmp_path: Path) -> None:
    async with supervised(tmp_path, engine) as scene:
        pid = await scene.pid()
        held = await scene.held_stream()
        scene.supervisor.tell()
        await scene.until(lambda: "told to end: 1 connections finish" in scene.text())
        assert not held.done()
        os.kill(pid, signal.SIGUSR1)
        assert await held == f"data: {pid}\n\n" * 3 + "data: [DONE]\n\n"
        await scene.running
        assert gone(pid)
        with pytest.raises(ConnectionError):
            await scene.connect()


async def test_told_twice_it_ends_at_once(tmp_path: Path) -> None:
    async with supervised(tmp_path, "smg") as scene:
        pid = await scene.pid()
        held = await scene.held_stream()
        scene.supervisor.tell()
        await scene.until(lambda: "told to end" in scene.text())
        scene.supervisor.tell()
        await scene.running
        assert gone(pid)
        assert f"smg (pid {pid}) is killed" in scene.text()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await held


async def test_a_full_disk_is_said_and_the_file_is_followed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "KEEP_EVERY_S", 0.05)
    full = True
    write = Manifest.write

    def fails(self: Manifest, content: Mapping[str, object]) -> bool:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, content)

    async with supervised(tmp_path, "smg") as scene:
        await scene.serves()
        pid = scene.supervisor.status().pid
        monkeypatch.setattr(Manifest, "write", fails)
        scene.file.drained = (D2,)
        scene.file.timeout = 101  # wants a new process, too
        scene.file.write()
        await scene.until(lambda: "No space left on device" in scene.supervisor.status().failed)
        status = scene.supervisor.status()
        assert "No space left on device" in status.pending[0]
        assert (status.state, status.pid) == ("serving", pid)
        scene.file.drained = (D1,)
        scene.file.write()
        await scene.until(lambda: scene.text().count("read again") == 2)
        full = False
        await scene.workers_are({P1, P2, D2})
        assert scene.text().count("workers stay as they are until it can") == 1
        await scene.until(lambda: not any("No space" in one for one in scene.supervisor.status().pending))


async def test_what_nobody_waits_for_goes_on_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "KEEP_EVERY_S", 0.01)
    took = Supervisor._took
    failures = iter([ValueError("odd")])

    async def fails_once(self: Supervisor, event: Event) -> None:
        await took(self, event)
        for failure in failures:
            raise failure

    monkeypatch.setattr(Supervisor, "_took", fails_once)
    async with supervised(tmp_path, "sglang-router") as scene:
        await scene.serves()
        for timeout in (101, 102):
            scene.file.timeout = timeout
            scene.file.write()
            await scene.until(lambda n=timeout - 100: scene.supervisor.status().hand_overs == n)  # type: ignore[misc]
        assert "internal error in follow: ValueError: odd; it is tried again" in scene.text()


async def test_a_key_that_a_later_file_names_is_hidden_too(tmp_path: Path) -> None:
    async with supervised(tmp_path, "smg", environ={"LATER_KEY": KEY}) as scene:
        await scene.serves()
        scene.file.further = f'[decode.worker."{D1}"]\napi_key_env = "LATER_KEY"'
        scene.file.write()
        await scene.until(lambda: "api_key_env" in scene.text())
        assert KEY not in scene.supervisor._output.passed_on("smg", f"dialled with {KEY}")


@BOTH
async def test_a_pool_that_the_file_empties_is_followed_and_stays_said(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "REMIND_S", 0.05)
    words = "[decode] every worker is drained: requests are refused"
    async with supervised(tmp_path, engine) as scene:
        await scene.serves()
        scene.file.policy = "round_robin"
        scene.file.drained = (D1, D2)
        scene.file.write()
        await scene.until(lambda: scene.text().count(words) >= 3)
        assert words in scene.supervisor.status().not_honoured
        await scene.workers_are({P1, P2})
        scene.file.drained = ()
        scene.file.write()
        await scene.until(lambda: words not in scene.supervisor.status().not_honoured)
