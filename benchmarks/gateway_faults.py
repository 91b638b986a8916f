"""The embedded router under load while its workers die, hang and come back and its file changes.

    python benchmarks/gateway_faults.py [--streams 400] [--reloads 100]

Simulated workers (two prefill, three decode, a process each) and as many concurrent streams all the time.
Every request must end whole or with an error that its client can see; afterwards nothing may be left: no
request in flight, no further memory than a few MB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from gateway import Client, Seen, free_ports, ready, request, rss_mb

PREFILLS, DECODES = 2, 3


class Cluster:
    """Workers and the router as processes; a worker keeps its ports when it is started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(2 * PREFILLS + DECODES + 1)
        self.port = ports.pop()
        self.prefill = [(ports.pop(), ports.pop()) for _ in range(PREFILLS)]
        self.decode = [ports.pop() for _ in range(DECODES)]
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        for port in (*(p for p, _ in self.prefill), *self.decode):
            self.start(port)
        self.config = folder / "config.toml"
        self.write()
        self.router = self._run("pdtop.gateway", str(self.config))

    def _run(self, module: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{module}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", module, *words], stdout=log, stderr=log)

    def start(self, port: int) -> None:
        words = ["--port", str(port), "--stream-interval", "8"]
        boot = dict(self.prefill).get(port)
        words += (
            ["--role", "decode"] if boot is None else ["--role", "prefill", "--bootstrap-port", str(boot)]
        )
        self.workers[port] = self._run("pdtop.simulator.worker", *words)

    def tell(self, port: int, number: signal.Signals) -> None:
        self.workers[port].send_signal(number)

    def write(self, weight: float = 1.0) -> None:
        """config.toml, replaced as editors do it."""
        lines = ["[server]", 'host = "127.0.0.1"', f"port = {self.port}", 'engine = "embedded"']
        lines += ["[health]", "interval_secs = 1", "timeout_secs = 1", "unhealthy_threshold = 2"]
        names = ", ".join(f'"127.0.0.1:{p}"' for p, _ in self.prefill)
        lines += ["[prefill]", f"workers = [{names}]", 'policy = "cache_aware"']
        for port, boot in self.prefill:
            lines += [f'[prefill.worker."127.0.0.1:{port}"]', f"bootstrap_port = {boot}"]
        names = ", ".join(f'"127.0.0.1:{p}"' for p in self.decode)
        lines += ["[decode]", f"workers = [{names}]", 'policy = "power_of_two"']
        lines += [f'[decode.worker."127.0.0.1:{self.decode[0]}"]', f"weight = {weight}", ""]
        new = self.config.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.rename(self.config)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer, from JSON or as text."""
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        with urllib.request.urlopen(call, timeout=10) as answer:  # noqa: S310
            said: bytes = answer.read()
        return json.loads(said) if said.startswith(b"{") else said.decode()

    def listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "/workers")["workers"]
        return found

    def stop(self) -> None:
        for process in (self.router, *self.workers.values()):
            process.kill()
            process.wait()


class Load:
    """So many streams all the time, each on a connection of its own."""

    def __init__(self, port: int, streams: int) -> None:
        self.port, self.streams = port, streams
        self.seen = Seen()
        self.sent = 0
        self.over = False

    async def run(self) -> None:
        await asyncio.gather(*(self._one() for _ in range(self.streams)))

    async def _one(self) -> None:
        client: Client | None = None
        while not self.over:
            if client is None or client.transport.is_closing():
                _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", self.port)
            self.sent += 1
            before = sum(self.seen.errors.values())
            await client.ask(request(40), self.seen)
            if sum(self.seen.errors.values()) > before:
                client.transport.close()
                await asyncio.sleep(0.2)
        if client is not None:
            client.transport.close()

    @property
    def counts(self) -> Counter[str]:
        return Counter({"ok": len(self.seen.first), **self.seen.errors})


async def main_load(cluster: Cluster, streams: int, reloads: int) -> None:
    await ready(cluster.port, b"5")
    load = Load(cluster.port, streams)
    running = asyncio.create_task(load.run())

    async def step(name: str, act: Callable[[], Awaitable[None]]) -> None:
        before = load.counts
        started = time.perf_counter()
        await act()
        found = {k: n for k, n in (load.counts - before).items() if n}
        memory = rss_mb(cluster.router.pid)
        took = time.perf_counter() - started
        print(f"{name:28} {took:5.1f} s  {memory:6.1f} MB  {found}", flush=True)

    def fault(port: int, number: signal.Signals, then: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        async def act() -> None:
            cluster.tell(port, number)
            await asyncio.sleep(5)
            then()
            await asyncio.sleep(5)

        return act

    async def calm() -> None:
        await asyncio.sleep(6)

    async def reload() -> None:
        for i in range(reloads):
            cluster.write(weight=1.5 + i % 2)
            await asyncio.sleep(0.9)  # longer than a good file has to stand still

    async def drain() -> None:
        for _ in range(20):
            for worker in await asyncio.to_thread(cluster.listed):
                path = f"/workers/{worker['id']}"
                for drained in (True, False):
                    await asyncio.to_thread(cluster.ask, "PATCH", path, {"drain": drained})
                    await asyncio.sleep(0.02)

    p, d = cluster.prefill[0][0], cluster.decode[0]
    await step("warm", calm)
    await step("kill a decode, restart it", fault(d, signal.SIGKILL, lambda: cluster.start(d)))
    await step("kill a prefill, restart it", fault(p, signal.SIGKILL, lambda: cluster.start(p)))
    await step("hang a prefill, resume it", fault(p, signal.SIGSTOP, lambda: cluster.tell(p, signal.SIGCONT)))
    await step("hang a decode, resume it", fault(d, signal.SIGSTOP, lambda: cluster.tell(d, signal.SIGCONT)))
    await step(f"reload {reloads} times", reload)
    await step("drain and undrain in a loop", drain)
    await step("calm again", calm)
    load.over = True
    await asyncio.wait_for(running, 60)
    await asyncio.sleep(1.5)
    ended = sum(load.counts.values())
    left = {w["url"]: w["load"] for w in cluster.listed() if w["load"]}
    page: str = cluster.ask("GET", "/metrics")
    taken = re.findall(r'smg_config_reload_total{outcome="(\w+)"} (\d+)', page)
    print(f"sent {load.sent}, ended {ended}, left in flight {left}, reloads {dict(taken)}")
    if load.sent != ended or left:
        raise SystemExit("a request was lost, or a counter is stuck")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=400)
    parser.add_argument("--reloads", type=int, default=100)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            asyncio.run(main_load(cluster, args.streams, args.reloads))
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
