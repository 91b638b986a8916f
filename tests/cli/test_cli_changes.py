"""The verbs that change a cluster, as processes over the demo's router and simulated workers."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aiohttp import web

from pdtop.config.load import load
from pdtop.config.schema import Config
from pdtop.config.watch import ConfigWatch
from pdtop.gateway.app import Gateway
from pdtop.simulator.children import listening
from pdtop.simulator.decode import DecodeModel
from pdtop.simulator.worker import SimWorker
from tests.cli.test_cli import PATIENCE_S, Ended, ended, run, started
from tests.simulator.support import DECODE, PREFILL, client, eventually, post, workers

#: A stream on it lasts longer than a test.
SLOW = replace(DECODE, decode=DecodeModel(step_s=0.05, step_per_request_s=0.0, step_per_kilotoken_s=0.0))
CHAT = {"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 5000, "stream": True}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Two prefill and two decode workers behind the demo's router, which reads ``path``."""

    path: Path
    url: str
    members: list[SimWorker]

    def address(self, index: int) -> str:
        return self.members[index].url.removeprefix("http://")

    @property
    def config(self) -> Config:
        found = load(self.path).config
        assert found is not None
        return found

    def drained(self, index: int) -> bool:
        return self.config.decode.settings_of(self.address(index)).drain

    def words(self, verb: str, *more: str) -> tuple[str, ...]:
        return (verb, *more, "-c", str(self.path))

    async def run(self, verb: str, *more: str) -> Ended:
        return await run(self.path.parent, *self.words(verb, *more), **self.environ)

    async def started(self, verb: str, *more: str) -> asyncio.subprocess.Process:
        return await started(self.path.parent, *self.words(verb, *more), **self.environ)

    @property
    def environ(self) -> dict[str, str]:
        return {"PDTOP_STATE_DIR": str(self.path.parent / "state")}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    path = tmp_path / "config.toml"
    socket = listening()
    url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    async with workers(PREFILL, PREFILL, SLOW, SLOW) as members:
        path.write_text(config_text(url, members))
        loaded = load(path)
        assert loaded.config is not None
        gateway = Gateway(loaded.config, seed=1, watch=ConfigWatch(loaded))
        runner = web.AppRunner(gateway.app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await gateway.start()
            await web.SockSite(runner, socket).start()
            yield Cluster(path, url, members)
        finally:
            await runner.cleanup()
            await gateway.stop()


def config_text(url: str, members: list[SimWorker]) -> str:
    lines = ["# kept", "[server]", f'url = "{url}"', "[console]", "interval_secs = 0.3"]
    for role in ("prefill", "decode"):
        found = [w.url.removeprefix("http://") for w in members if w.spec.role == role]
        lines += [f"[{role}]", f"workers = {json.dumps(found)}  # and this", 'policy = "round_robin"']
    for one in members:
        if one.spec.role == "prefill":
            lines += [f'[prefill.worker."{one.url.removeprefix("http://")}"]']
            lines += [f"bootstrap_port = {one.bootstrap_port}"]
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def streams(cluster: Cluster, number: int) -> AsyncIterator[None]:
    """So many long streams; round robin puts as many on each decode worker."""
    async with client() as session:
        asked = [
            asyncio.create_task(post(session, f"{cluster.url}/v1/chat/completions", CHAT))
            for _ in range(number)
        ]
        try:
            await eventually(lambda: all(running(one) for one in cluster.members[2:]))
            yield
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


def running(worker: SimWorker) -> int:
    return worker.engines[0].gauges(0.0).running


async def said(process: asyncio.subprocess.Process, words: str) -> None:
    """Wait until it says so on stderr."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        while words not in (line := (await process.stderr.readline()).decode()):
            assert line, f"it ended and did not say {words!r}"


async def test_a_worker_is_drained_brought_back_and_all_of_it_logged(cluster: Cluster) -> None:
    before = cluster.path.read_bytes()
    worker = cluster.address(2)

    planned = await cluster.run("drain", worker, "--dry-run")
    assert (planned.code, cluster.path.read_bytes()) == (0, before)
    assert f'+[decode.worker."{worker}"]' in planned.out

    drained = await cluster.run("drain", worker, "--wait", "--yes")
    assert (drained.code, drained.out.splitlines()[0]) == (0, f"drained: {worker} is safe to stop")
    assert cluster.drained(2)

    again = await cluster.run("drain", worker.rpartition(":")[2], "--wait")
    assert (again.code, "drained already" in again.err) == (0, True)

    back = await cluster.run("undo", "--yes")
    assert (back.code, cluster.path.read_bytes()) == (0, before)

    log = await cluster.run("log", "--json")
    entries = [json.loads(line) for line in log.out.splitlines()]
    assert [(entry["operation"], entry["outcome"]) for entry in entries] == [
        ("drain", "done"),
        ("drained", "done"),
        ("undo", "done"),
    ]
    assert (await cluster.run("log", "-n", "1")).out.count("\n") == 1


async def test_the_last_worker_of_a_pool_needs_its_name(cluster: Cluster) -> None:
    assert (await cluster.run("drain", cluster.address(2), "--yes")).code == 0
    refused = await cluster.run("drain", cluster.address(3), "--yes")
    assert (refused.code, cluster.drained(3)) == (4, False)
    assert "--type" in refused.out


async def test_a_stream_is_waited_for_and_never_cut(cluster: Cluster) -> None:
    worker = cluster.address(2)
    async with streams(cluster, 2):
        late = await cluster.run("drain", worker, "--wait", "--timeout", "4s", "--yes")
        assert late.code == 3
        assert f"not drained in time: {worker}: 1 left" in late.out

        process = await cluster.started("drain", worker, "--wait")
        await said(process, "1 left")
        process.send_signal(signal.SIGINT)
        done = await ended(process)
        assert done.code == 130
        assert "stays in force" in done.out

        process = await cluster.started("drain", worker, "--wait")
        await said(process, "1 left")
    done = await ended(process)  # its client has gone
    assert (done.code, cluster.drained(2)) == (0, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("drain", "127.0.0.1:9"), "there is no worker '127.0.0.1:9'"),
        (("set", "decode.polcy", "round_robin", "--yes"), "did you mean policy?"),
        (("set", "prefill.cache_aware_threshold", "30", "--yes"), "did you mean 0.30?"),
        (("set", 'decode."', "1"), "not a dotted name"),
        (("drain", "x", "--timeout", "soon"), "--timeout 'soon' is not a time"),
    ],
)
async def test_wrong_words_change_nothing(cluster: Cluster, words: tuple[str, ...], said: str) -> None:
    before = cluster.path.read_bytes()
    done = await cluster.run(*words)
    assert (done.code, cluster.path.read_bytes()) == (2, before)
    assert said in done.err


async def test_a_read_only_file_refuses_until_write_is_said(cluster: Cluster) -> None:
    with cluster.path.open("a") as file:
        file.write("[slo]\n")
    cluster.path.write_text(cluster.path.read_text().replace("[console]", "[console]\nread_only = true"))
    refused = await cluster.run("set", "slo.ttft_p99_ms", "800", "--yes")
    assert (refused.code, cluster.config.slo.ttft_p99_ms) == (4, None)
    assert "--write goes over it" in refused.err
    done = await cluster.run("set", "slo.ttft_p99_ms", "800", "--yes", "--write")
    assert (done.code, cluster.config.slo.ttft_p99_ms) == (0, 800)


async def test_config_set_is_the_same_with_the_file_first(cluster: Cluster) -> None:
    place, file = cluster.path.parent, str(cluster.path)
    words = ("decode.policy", "power_of_two", "--yes")
    done = await run(place, "config", "set", file, *words, **cluster.environ)
    assert (done.code, cluster.config.decode.policy) == (0, "power_of_two")
    done = await run(place, "config", "unset", file, "decode.policy", "--yes", **cluster.environ)
    assert done.code == 0
    assert "policy" not in cluster.path.read_text().partition("[decode]")[2].partition("[")[0]


async def test_without_a_file_a_change_has_nowhere_to_last_and_init_writes_one(cluster: Cluster) -> None:
    place = cluster.path.parent
    refused = await run(place, "drain", cluster.address(2), "-c", cluster.url, "--yes", **cluster.environ)
    assert refused.code == 2
    assert "config init --from" in refused.err

    made = await run(place, "config", "init", "new.toml", "--from", cluster.url, **cluster.environ)
    assert made.code == 0
    check = await run(place, "config", "check", "new.toml", **cluster.environ)
    assert (check.code, "fine" in check.out) == (0, True)
    new = load(place / "new.toml").config
    assert new is not None
    assert (new.server.url, new.server.engine) == (cluster.url, "embedded")
    assert new.decode.workers == tuple(sorted((cluster.address(2), cluster.address(3))))
    ports = [new.prefill.settings_of(cluster.address(index)).bootstrap_port for index in (0, 1)]
    assert ports == [member.bootstrap_port for member in cluster.members[:2]]


async def test_init_from_a_router_that_does_not_answer(tmp_path: Path) -> None:
    done = await run(tmp_path, "config", "init", "--from", "http://127.0.0.1:9")
    assert (done.code, (tmp_path / "config.toml").exists()) == (3, False)
    assert "does not tell its workers" in done.err


async def test_apply_watch_says_what_happens_and_verbs_work_beside_it(cluster: Cluster) -> None:
    process = await cluster.started("apply", "--watch", "--yes")
    await said(process, "kept true")
    second = await cluster.run("apply", "--watch", "--yes")
    assert (second.code, "'s service tells the routers" in second.err) == (4, True)
    drained = await cluster.run("drain", cluster.address(2), "--wait", "--yes")
    assert (drained.code, "safe to stop" in drained.out, cluster.drained(2)) == (0, True, True)
    assert "'s service tells the routers; this waits to see it done" in drained.err
    await said(process, "config.toml edited by ")
    await said(process, "drained, safe to stop")
    back = await cluster.run("undrain", cluster.address(2), "--yes")
    assert (back.code, "the router shows what the file says" in back.out) == (0, True)
    await said(process, "config.toml edited by ")

    text = cluster.path.read_text().replace("round_robin", "random")
    cluster.path.write_text(text)
    await said(process, "config.toml edited")
    await said(process, "done")
    cluster.path.write_text("[prefill\n")
    await said(process, "line 1")
    process.send_signal(signal.SIGTERM)
    done = await ended(process)
    assert (done.code, "the routers stay as they are" in done.err) == (0, True)
