"""Live reload: what changes when the file does, what stays, what a bad file does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import aiohttp
import pytest

from pdtop.config.load import load, load_bytes
from pdtop.config.schema import Config
from pdtop.config.watch import Accepted, ConfigWatch, Rejected, Restored
from pdtop.gateway.app import Gateway
from pdtop.gateway.fleet import CannotServe
from pdtop.gateway.reload import Reload, _decide, restart_needed
from pdtop.simulator.worker import SimWorker
from tests.gateway.test_gateway import CHAT, router, samples
from tests.simulator.support import DECODE, PREFILL, client, eventually, get, post, workers


def text(running: Sequence[SimWorker], policy: str = "round_robin", more: str = "", port: int = 30000) -> str:
    """config.toml for these workers; ``more`` stands at the end."""
    lines = ["[server]", 'host = "127.0.0.1"', f"port = {port}"]
    for role in ("prefill", "decode"):
        members = [w.url.removeprefix("http://") for w in running if w.spec.role == role]
        listed = ", ".join(f'"{m}"' for m in members)
        lines += [f"[{role}]", f"workers = [{listed}]", f'policy = "{policy}"']
    for w in running:
        if w.spec.role == "prefill":
            address = w.url.removeprefix("http://")
            lines += [f'[prefill.worker."{address}"]', f"bootstrap_port = {w.bootstrap_port}"]
    return "\n".join([*lines, more, ""])


class Written:
    """A config.toml whose changes are seen at once, without a clock."""

    def __init__(self, path: Path, content: str) -> None:
        self.path = path
        path.write_text(content)
        self._now = 0.0
        self._changed = asyncio.Event()

        self.watch = ConfigWatch(
            load(path), clock=lambda: self._now, sleep=self._wait, file_events=self._events
        )

    def write(self, content: str) -> None:
        self.path.write_text(content)
        self._now += 10.0
        self._changed.set()

    async def _events(self, path: Path) -> AsyncIterator[None]:
        while True:
            await self._changed.wait()
            self._changed.clear()
            yield None

    async def _wait(self, seconds: float) -> None:
        """Time goes on by itself while new content has to stand still."""
        if self.watch.idle:
            await asyncio.Event().wait()
        self._now += seconds


@asynccontextmanager
async def reloading(path: Path, content: str) -> AsyncIterator[tuple[Gateway, str, Written]]:
    file = Written(path, content)
    assert file.watch.active.config is not None
    async with router(file.watch.active.config, watch=file.watch) as (gateway, url):
        yield gateway, url, file


async def said(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    found: dict[str, Any] = (await get(session, url + "/config")).json
    return found


async def test_every_kind_of_change_counts_for_the_next_request(tmp_path: Path) -> None:
    async with (
        workers(PREFILL, DECODE, DECODE) as running,
        reloading(tmp_path / "config.toml", text(running[:2])) as (gateway, url, file),
        client() as session,
    ):
        p, d1, d2 = running
        kept = gateway.fleet.decode.backends[0]
        assert (await post(session, url + "/v1/chat/completions", CHAT)).status == 200
        address = d1.url.removeprefix("http://")
        more = f"""
            [decode.worker."{address}"]
            drain = true
            [health]
            unhealthy_threshold = 9
            [load]
            measure = "tokens"
            """
        changed = text(running, "least_load", more).replace(
            'policy = "least_load"', 'policy = "least_load"\ncache_aware_threshold = 0.1'
        )
        file.write(changed)
        await eventually(lambda: gateway.last_reload is not None)
        assert gateway.last_reload is not None and gateway.last_reload.outcome == "accepted"
        assert [b.url for b in gateway.fleet.decode] == [d1.url, d2.url]
        assert gateway.fleet.decode.backends[0] is kept
        assert (kept.dispatched, kept.status, kept.probes.down_after) == (1, "draining", 9)
        assert gateway.fleet.decode.policy == "least_load"
        assert gateway.fleet.decode.rules.cache_aware_threshold == 0.1
        assert gateway.fleet.decode.weights.measure == "tokens"
        answer = await post(session, url + "/v1/chat/completions", CHAT)
        assert answer.headers["x-sglang-decode-worker"] == d2.url
        assert answer.headers["x-sglang-prefill-worker"] == p.url
        found = await samples(session, url)
    assert found["smg_config_reload_total"] == 1
    assert found["smg_config_last_reload_successful"] == 1


async def test_a_stream_outlives_the_removal_of_both_its_workers(tmp_path: Path) -> None:
    slow = replace(DECODE, decode=replace(DECODE.decode, step_s=0.01))
    async with (
        workers(PREFILL, slow, PREFILL, DECODE) as running,
        reloading(tmp_path / "config.toml", text(running[:2])) as (gateway, url, file),
        client() as session,
    ):
        leaving = gateway.fleet.decode.backends[0]
        body = {**CHAT, "stream": True, "max_tokens": 60}
        async with session.post(url + "/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
            file.write(text(running[2:]))
            await eventually(lambda: gateway.last_reload is not None)
            assert (leaving.status, leaving.inflight) == ("draining", 1)
            other = await post(session, url + "/v1/chat/completions", CHAT)
            assert other.headers["x-sglang-decode-worker"] == running[3].url
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        await eventually(lambda: leaving.gone)
        assert [b.url for b in gateway.fleet] == [running[2].url, running[3].url]


async def test_a_bad_file_keeps_the_last_good_one_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        reloading(tmp_path / "config.toml", text(running)) as (gateway, url, file),
        client() as session,
    ):
        good = gateway.fleet.config
        file.write("[prefill\n")
        await eventually(lambda: gateway.last_reload is not None)
        assert gateway.fleet.config is good
        assert (await post(session, url + "/v1/chat/completions", CHAT)).status == 200
        page = await said(session, url)
        assert page["reload"]["outcome"] == "rejected"
        assert "config.toml line 1" in page["reload"]["words"]
        assert "the last good settings stay in force" in caplog.text
        found = await samples(session, url)
        assert found["smg_config_last_reload_successful"] == 0
        file.write(text(running, "bucket"))  # good TOML, but this router has no such policy
        await eventually(lambda: "bucket" in gateway.last_reload.words if gateway.last_reload else False)
        assert gateway.fleet.config is good
        file.write(text(running, "random"))
        await eventually(lambda: gateway.fleet.decode.policy == "random")
        assert (await said(session, url))["reload"]["outcome"] == "accepted"
        assert (await samples(session, url))["smg_config_last_reload_successful"] == 1


async def test_the_file_undoes_what_the_api_did(tmp_path: Path) -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        reloading(tmp_path / "config.toml", text(running)) as (gateway, url, file),
        client() as session,
    ):
        one = gateway.fleet.decode.backends[0]
        async with session.patch(f"{url}/workers/{one.worker_id}", json={"drain": True}) as answer:
            assert answer.status == 202
        assert (await post(session, url + "/v1/chat/completions", CHAT)).status == 503
        file.write(text(running) + "# only a remark\n")
        await eventually(lambda: gateway.last_reload is not None)
        assert (await post(session, url + "/v1/chat/completions", CHAT)).status == 200
        assert (await said(session, url))["transient"] == []


async def test_the_listening_address_needs_a_restart_and_that_is_said(tmp_path: Path) -> None:
    async with (
        reloading(tmp_path / "config.toml", text([])) as (gateway, url, file),
        client() as session,
    ):
        file.write(text([], port=30001))
        await eventually(lambda: gateway.last_reload is not None)
        assert (await said(session, url))["restart_needed"] == ["server.port"]


def test_only_the_address_and_the_engine_need_a_restart() -> None:
    before = Config.model_validate({"server": {"host": "127.0.0.1"}})
    after = Config.model_validate({"server": {"host": "::1", "port": 1, "api_key_env": "X"}})
    assert restart_needed(before, after) == ("server.host", "server.port")
    own = Config.model_validate({"server": {"host": "127.0.0.1", "engine": "embedded"}})
    assert restart_needed(before, own) == ()
    smg = Config.model_validate({"server": {"host": "127.0.0.1", "engine": "smg"}})
    assert restart_needed(before, smg) == ("server.engine",)


async def test_another_engine_in_the_file_is_said_to_need_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with reloading(tmp_path / "config.toml", text([])) as (gateway, url, file), client() as session:
        file.write(text([]).replace("[server]", '[server]\nengine = "smg"'))
        await eventually(lambda: gateway.last_reload is not None)
        assert (await said(session, url))["restart_needed"] == ["server.engine"]
    assert "server.engine has changed: that counts after a restart of this router" in caplog.messages


def test_decisions() -> None:
    good = load_bytes(Path("config.toml"), b"[server]\n")
    bad = load_bytes(Path("config.toml"), b"[server")
    applied: list[Config] = []

    def refuse(config: Config) -> None:
        raise CannotServe("no")

    assert _decide(Accepted(good, ()), applied.append).outcome == "accepted"
    assert _decide(Restored(good), applied.append).outcome == "restored"
    assert len(applied) == 2  # what the API changed meanwhile is undone by a restored file, too
    assert _decide(Rejected(bad, bad.problems), applied.append).outcome == "rejected"
    assert _decide(Accepted(good, ()), refuse).words == "no\nthe last good settings stay in force"

    def fail(config: Config) -> None:
        raise ZeroDivisionError("odd")

    assert _decide(Accepted(good, ()), fail) == Reload(
        "rejected", ANY, "internal error, these settings are not in force: ZeroDivisionError: odd"
    )
    assert len(applied) == 2


@pytest.mark.parametrize("name", ["no\\u0000name", "."])
async def test_a_ca_file_that_is_none_is_said_and_the_file_is_followed_on(tmp_path: Path, name: str) -> None:
    async with reloading(tmp_path / "config.toml", text([])) as (gateway, _, file):
        file.write(text([]).replace("[server]", f'[server]\nca_file = "{name}"'))
        await eventually(lambda: gateway.last_reload is not None)
        assert gateway.last_reload is not None
        assert gateway.last_reload.words.startswith("server.ca_file cannot be used: ")
        file.write(text([], policy="random"))
        await eventually(lambda: gateway.last_reload is not None and gateway.last_reload.ok)
        assert gateway.fleet.prefill.policy == "random"
