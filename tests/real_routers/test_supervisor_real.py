"""The published routers under the supervisor: a planned restart, a crash and the end, as clients see them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from pdtop.simulator.worker import SimWorker
from tests.real_routers.launcher import EACH_ENGINE, PYTHON, Engine
from tests.simulator.comparison import key
from tests.simulator.support import DECODE, PREFILL, client, get, workers
from tests.supervisor.scenes import free_ports

pytestmark = EACH_ENGINE

#: A stream of 60 tokens takes 3 s on it, one of 2 tokens a tenth of a second.
SLOW = replace(DECODE, stream_interval=2, decode=replace(DECODE.decode, step_s=0.05))
_PATIENCE_S = 25.0


@dataclass(slots=True)
class Supervised:
    """``pdtop router`` over one engine. ``threshold`` is a key that counts only after a restart."""

    file: Path
    engine: Engine
    running: Sequence[SimWorker]
    port: int
    metrics_port: int
    status_port: int
    threshold: int = 3
    drained: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self) -> None:
        lines = ["[server]", 'host = "127.0.0.1"', f"port = {self.port}", f'engine = "{self.engine.name}"']
        lines += [f'engine_python = "{PYTHON}"', f"status_port = {self.status_port}"]
        lines.append(f'metrics_url = "http://127.0.0.1:{self.metrics_port}/metrics"')
        if self.engine.name == "sglang-router":  # its thresholds of affinity have no effect in PD mode
            lines.append(f"[health]\nunhealthy_threshold = {self.threshold}")
        for role in ("prefill", "decode"):
            members = [key(worker) for worker in self.running if worker.spec.role == role]
            lines += [f"[{role}]", f"workers = {json.dumps(members)}", 'policy = "power_of_two"']
            if self.engine.name == "smg":
                lines.append(f"balance_abs_threshold = {self.threshold}")
        for worker in self.running:
            if worker.spec.role == "prefill":
                lines += [f'[prefill.worker."{key(worker)}"]', f"bootstrap_port = {worker.bootstrap_port}"]
        lines += [f'[decode.worker."{worker}"]\ndrain = true' for worker in self.drained]
        draft = self.file.with_suffix(".new")
        draft.write_text("\n".join([*lines, ""]))
        draft.replace(self.file)

    async def status(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        found: dict[str, Any] = (await get(session, f"http://127.0.0.1:{self.status_port}/supervisor")).json
        return found

    async def until(self, session: aiohttp.ClientSession, **wanted: object) -> dict[str, Any]:
        """The status as soon as it shows this."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                status = await self.status(session)
                if all(status[name] == value for name, value in wanted.items()):
                    return status
                await asyncio.sleep(0.02)

    async def listed(self, session: aiohttp.ClientSession) -> set[str]:
        """Workers that the router sends work to, by key."""
        found = (await get(session, self.url + "/workers")).json["workers"]
        return {one["url"].removeprefix("http://") for one in found if one.get("status") != "draining"}


@asynccontextmanager
async def supervised(
    engine: Engine, running: Sequence[SimWorker], folder: Path, session: aiohttp.ClientSession
) -> AsyncIterator[tuple[Supervised, asyncio.subprocess.Process]]:
    port, metrics_port, status_port = free_ports(3)
    made = Supervised(folder / "config.toml", engine, running, port, metrics_port, status_port)
    made.write()
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pdtop.supervisor", str(made.file)),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        assert json.loads(await process.stdout.readline())["url"] == made.url
        await made.until(session, state="serving")
        yield made, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@dataclass(slots=True)
class Seen:
    """What clients saw; anything but ``whole`` is a loss."""

    whole: int = 0
    lost: list[str] = field(default_factory=list)


async def stream(session: aiohttp.ClientSession, url: str, tokens: int) -> str:
    """Nothing for a whole answer, else what was wrong with it."""
    body = {
        "model": "demo-llama-70b",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "stream": True,
    }
    try:
        async with session.post(url + "/v1/chat/completions", json=body) as answer:
            text = (await answer.read()).decode()
            if answer.status != 200:
                return f"status {answer.status}"
    except aiohttp.ClientConnectorError:
        return "refused"
    except aiohttp.ClientError as error:
        return f"broken: {error!r}"
    return "" if text.endswith("data: [DONE]\n\n") and '"error"' not in text else "cut"


@asynccontextmanager
async def load(url: str) -> AsyncIterator[Seen]:
    """40 clients, 10 of them with streams of 3 s; half keep their connections, half make new ones."""
    seen = Seen()
    go_on = True

    async def one(session: aiohttp.ClientSession, tokens: int) -> None:
        while go_on:
            wrong = await stream(session, url, tokens)
            if wrong:
                seen.lost.append(wrong)
            else:
                seen.whole += 1

    fresh = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
    async with client() as kept, fresh:
        tasks = [
            asyncio.create_task(one(kept if n % 2 else fresh, 60 if n % 4 == 0 else 2)) for n in range(40)
        ]
        try:
            yield seen
        finally:
            go_on = False
            await asyncio.gather(*tasks)


async def test_a_restart_under_load_loses_nothing_and_keeps_drains(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, PREFILL, SLOW, SLOW) as running,
        client() as session,
        supervised(engine, running, tmp_path, session) as (router, process),
    ):
        everyone = {key(worker) for worker in running}
        assert await router.listed(session) == everyone
        drained = key(running[3])
        router.drained = (drained,)
        router.write()
        async with asyncio.timeout(_PATIENCE_S):
            while await router.listed(session) != everyone - {drained}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        asked = received(running[3])
        old = (await router.status(session))["pid"]
        async with load(router.url) as seen:
            await many(seen)
            router.threshold = 4
            router.write()
            status = await router.until(session, hand_overs=1)
            assert status["pid"] != old
            assert "→ 4" in status["last_restart_reason"]
            assert await router.listed(session) == everyone - {drained}
            await many(seen)
            await router.until(session, former=[])
            await many(seen)
        assert seen.lost == []
        assert not alive(old)
        assert received(running[3]) == asked
        async with session.get(f"http://127.0.0.1:{router.metrics_port}/metrics") as answer:
            assert "smg_http_requests_total" in await answer.text()
        assert process.returncode is None


async def test_a_crash_is_survived_and_the_end_is_gentle(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, PREFILL, SLOW, SLOW) as running,
        client() as session,
        supervised(engine, running, tmp_path, session) as (router, process),
    ):
        old = (await router.status(session))["pid"]
        os.kill(old, signal.SIGKILL)
        async with asyncio.timeout(_PATIENCE_S):
            while (await router.status(session))["restarts"] != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await stream(session, router.url, 2) == ""  # it waited
        status = await router.until(session, state="serving")
        assert (status["last_restart_reason"], status["held_out"]) == ("it was ended by SIGKILL", 0)
        assert status["pid"] != old

        at_work = asyncio.create_task(stream(session, router.url, 60))
        async with asyncio.timeout(_PATIENCE_S):
            while not sum(received(worker) for worker in running[2:]) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert await at_work == ""
        assert await asyncio.wait_for(process.wait(), _PATIENCE_S) == 0
        assert not alive(status["pid"])
        assert await stream(session, router.url, 2) == "refused"


async def many(seen: Seen) -> None:
    """Return when 150 more answers were whole, or something was lost."""
    wanted = seen.whole + 150
    async with asyncio.timeout(_PATIENCE_S):
        while seen.whole < wanted and not seen.lost:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def received(worker: SimWorker) -> int:
    return worker.telemetry.truth.counts["received"]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
