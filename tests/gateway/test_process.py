"""The router as a process: follows its file on disk, ends after its last request."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from pdtop.simulator.worker import SimWorker
from tests.gateway.test_gateway import CHAT
from tests.gateway.test_reload import text
from tests.simulator.support import DECODE, PREFILL, client, get, post, workers

PATIENCE_S = 15.0


@asynccontextmanager
async def started(path: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """``python -m pdtop.gateway`` and its address; any free port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pdtop.gateway",
        str(path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield process, json.loads(await process.stdout.readline())["url"]
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def written(path: Path, running: list[SimWorker], unused_port: int, more: str = "") -> Path:
    path.write_text(text(running, port=unused_port, more=more))
    return path


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


async def outcome(session: aiohttp.ClientSession, url: str) -> str:
    while True:
        said = (await get(session, url + "/config")).json["reload"]["outcome"]
        if said != "none":
            return str(said)
        await asyncio.sleep(0.05)


async def test_the_file_on_disk_is_followed(tmp_path: Path, unused_port: int) -> None:
    async with workers(PREFILL, DECODE) as running, client() as session:
        path = written(tmp_path / "config.toml", running, unused_port)
        async with started(path) as (_, url):
            assert (await post(session, url + "/v1/chat/completions", CHAT)).status == 200
            name = running[1].url.removeprefix("http://")
            written(path, running, unused_port, f'[decode.worker."{name}"]\ndrain = true')
            assert await outcome(session, url) == "accepted"
            assert (await post(session, url + "/v1/chat/completions", CHAT)).status == 503


async def test_the_end_waits_for_streams(tmp_path: Path, unused_port: int) -> None:
    slow = replace(DECODE, decode=replace(DECODE.decode, step_s=0.02))
    async with workers(PREFILL, slow) as running, client() as session:
        path = written(tmp_path / "config.toml", running, unused_port)
        async with started(path) as (process, url):
            body = {**CHAT, "stream": True, "max_tokens": 40}
            async with session.post(url + "/v1/chat/completions", json=body) as answer:
                await answer.content.readany()
                process.send_signal(signal.SIGTERM)
                rest = await answer.read()
            assert rest.endswith(b"data: [DONE]\n\n")
            assert b'"error"' not in rest
            assert await process.wait() == 0


async def test_it_may_open_as_many_connections_as_the_system_lets_it(
    tmp_path: Path, unused_port: int
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    path = written(tmp_path / "config.toml", [], unused_port)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))  # a child begins with it
    try:
        async with started(path) as (process, _):
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_file_that_is_wrong_from_the_start_is_said(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[prefill]\npolicy = "cache_awear"\n')
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pdtop.gateway", str(path), stderr=asyncio.subprocess.PIPE
    )
    _, words = await process.communicate()
    assert process.returncode == 2
    assert b"did you mean cache_aware?" in words
