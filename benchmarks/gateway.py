"""The embedded router beside smg and sglang-router over the same workers: speed, CPU, memory, streams held.

    python benchmarks/gateway.py [--routers-python VENV/bin/python] [--cores 1,2] [--seconds 6]

Self-contained: a child process is two prefill and two decode workers that answer at once, as plain bytes;
this process is the load. The router has core 0 (or 0 and 1) to itself as far as the machine allows; workers
and load have the last core. A request is a streaming chat with a prompt of 4 KB and 16 events 5 ms apart.
Without ``--routers-python`` only the embedded router is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

EVENTS = 16
GAP_S = 0.005
PROMPT = "x" * 4000
HELD = 1000
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

_CHUNK = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
_PAGES: dict[str, object] = {
    "/v1/models": {"object": "list", "data": [{"id": "fake", "object": "model", "owned_by": "sglang"}]},
    "/model_info": {"model_path": "fake", "served_model_name": "fake"},
    "/v1/loads": {"timestamp": "2026-01-01T00:00:00+00:00", "version": "0.5.23", "loads": []},
}


def event(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({**_CHUNK, "choices": [choice]}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(body: object) -> bytes:
    data = json.dumps(body).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(data) + data


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_FIRST, _NEXT = chunk(event("word")), chunk(event(" next"))
_END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_PREFILL = _HEAD + _FIRST + _END


class Worker(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, as little of it as routers need."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pending += data
        if self.pending.startswith(b"PRI "):  # HTTP/2 is tried first by some
            self.transport.close()
            return
        while (end := self.pending.find(b"\r\n\r\n")) >= 0:
            head = self.pending[:end].lower()
            size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self.pending) < end + 4 + size:
                return
            words = self.pending[:end].split(b" ", 2)
            body = self.pending[end + 4 : end + 4 + size]
            self.pending = self.pending[end + 4 + size :]
            self.answer(words[0], words[1].partition(b"?")[0].decode(), body)

    def answer(self, method: bytes, path: str, body: bytes) -> None:
        if method != b"POST":
            info = {"disaggregation_mode": self.role, "served_model_name": "fake", "version": "0.5.23"}
            self.transport.write(whole(_PAGES.get(path, info)))
        elif self.role == "prefill":
            self.transport.write(_PREFILL)
        else:
            self.transport.write(_HEAD + _FIRST)
            slow = b'"max_tokens": 99' in body or b'"max_tokens":99' in body
            self.go_on(EVENTS - 1, 0.5 if slow else GAP_S)

    def go_on(self, left: int, gap: float) -> None:
        if self.transport.is_closing():
            return
        if not left:
            self.transport.write(_END)
            return
        asyncio.get_running_loop().call_later(gap, self.step, left, gap)

    def step(self, left: int, gap: float) -> None:
        if not self.transport.is_closing():
            self.transport.write(_NEXT)
            self.go_on(left - 1, gap)


async def be_workers() -> None:
    loop = asyncio.get_running_loop()
    places: list[int] = []
    for role in ("prefill", "prefill", "decode", "decode"):
        server = await loop.create_server(partial(Worker, role), "127.0.0.1", 0, backlog=4096)
        places.append(server.sockets[0].getsockname()[1])
    print(json.dumps(places), flush=True)
    await asyncio.Event().wait()


@dataclass(slots=True)
class Seen:
    """What the clients saw: seconds to the first byte of the body and to the end."""

    first: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)


def request(tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": "fake",
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": tokens,
            "stream": True,
        }
    ).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


class Client(asyncio.Protocol):
    """One connection; :meth:`ask` sends a request and returns when its answer has ended."""

    def __init__(self) -> None:
        self.done: asyncio.Future[str] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    async def ask(self, content: bytes, seen: Seen) -> None:
        self.head = self.tail = b""
        self.started, self.first = time.perf_counter(), 0.0
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(content)
        end = await self.done
        if end == "ok":
            seen.first.append(self.first - self.started)
        else:
            seen.errors[end] = seen.errors.get(end, 0) + 1

    def data_received(self, data: bytes) -> None:
        if len(self.head) < 4096:
            self.head += data
        if not self.first and b"data:" in data:
            self.first = time.perf_counter()
        self.tail = (self.tail + data)[-64:]
        if self.tail.endswith(b"\r\n0\r\n\r\n"):
            self.finish("ok" if b"[DONE]" in self.tail and b'"error"' not in self.head else "broken")
        elif not self.head.startswith(b"HTTP/1.1 200") and b"\r\n\r\n" in self.head:
            self.finish(self.head[9:12].decode())

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish("closed")

    def finish(self, how: str) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(how)


async def connect(port: int, count: int) -> list[Client]:
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(count):
        _, client = await loop.create_connection(Client, "127.0.0.1", port)
        made.append(client)
    return made


async def saturate(port: int, seconds: float, streams: int = 96) -> tuple[Seen, float]:
    """Closed loop: as many as will go."""
    seen, content = Seen(), request(16)
    clients = await connect(port, streams)
    started = time.perf_counter()

    async def one(client: Client) -> None:
        while time.perf_counter() - started < seconds and not client.transport.is_closing():
            await client.ask(content, seen)

    await asyncio.gather(*(one(c) for c in clients))
    took = time.perf_counter() - started
    for client in clients:
        client.transport.close()
    return seen, took


async def trickle(port: int, rate: float, seconds: float) -> Seen:
    """Open loop: Poisson arrivals."""
    seen, content, chance = Seen(), request(16), random.Random(1)
    free = await connect(port, 40)
    running: set[asyncio.Task[None]] = set()

    async def one() -> None:
        client = free.pop()
        await client.ask(content, seen)
        free.append(client)

    due = started = time.perf_counter()
    while due - started < seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one())
        running.add(task)
        task.add_done_callback(running.discard)
        due += chance.expovariate(rate)
    await asyncio.gather(*running)
    for client in free:
        client.transport.close()
    return seen


async def hold(port: int, pid: int) -> tuple[Seen, float]:
    """Streams of 8 s that are all open at once; and the router's memory meanwhile, MB."""
    seen, content = Seen(), request(99)
    clients = await connect(port, HELD)
    tasks = [asyncio.create_task(c.ask(content, seen)) for c in clients]
    await asyncio.sleep(5)
    memory = rss_mb(pid)
    await asyncio.gather(*tasks)
    for client in clients:
        client.transport.close()
    return seen, memory


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 2**20


def free_ports(count: int) -> list[int]:
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(s.getsockname()[1]) for s in socks]
    for s in socks:
        s.close()
    return ports


def command(engine: str, python: str, ports: Sequence[int], port: int, folder: Path) -> list[str]:
    p1, p2, d1, d2 = (f"127.0.0.1:{p}" for p in ports)
    if engine == "pdtop":
        config = folder / "config.toml"
        config.write_text(
            f'[server]\nhost = "127.0.0.1"\nport = {port}\nengine = "embedded"\n'
            f'[prefill]\nworkers = ["{p1}", "{p2}"]\npolicy = "cache_aware"\n'
            f'[decode]\nworkers = ["{d1}", "{d2}"]\npolicy = "power_of_two"\n'
        )
        return [sys.executable, "-m", "pdtop.gateway", str(config)]
    module = {"smg": "smg.launch_router", "sglang-router": "sglang_router.launch_router"}[engine]
    words = [python, "-m", module, "--host", "127.0.0.1", "--port", str(port), "--pd-disaggregation"]
    words += ["--prefill-policy", "cache_aware", "--decode-policy", "power_of_two"]
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_ports(1)[0])]
    for worker in (p1, p2):
        words += ["--prefill", f"http://{worker}", "8998"]
    for worker in (d1, d2):
        words += ["--decode", f"http://{worker}"]
    return words


@contextmanager
def router(
    engine: str, python: str, ports: Sequence[int], cores: set[int], folder: Path
) -> Iterator[tuple[int, int]]:
    """The running router: its port and process id."""
    port = free_ports(1)[0]
    with (folder / f"{engine}.log").open("wb") as log:
        process = subprocess.Popen(
            command(engine, python, ports, port, folder),
            stdout=log,
            stderr=log,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
    try:
        asyncio.run(ready(port))
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def ready(port: int, workers: bytes = b"4") -> None:
    deadline = time.perf_counter() + 30
    while time.perf_counter() < deadline:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /readiness HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            if answer.startswith(b"HTTP/1.1 200") and workers in answer.rpartition(b"total_workers")[2]:
                return
        except OSError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("the router does not get ready; see its log")


def quantile(values: Sequence[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def measure(port: int, pid: int, decode: int, seconds: float, held: bool) -> dict[str, object]:
    idle_mb = rss_mb(pid)
    direct = asyncio.run(trickle(decode, 50, seconds))
    before = cpu_s(pid)
    calm = asyncio.run(trickle(port, 50, seconds))
    calm_cpu = (cpu_s(pid) - before) / len(calm.first)
    before = cpu_s(pid)
    busy, took = asyncio.run(saturate(port, seconds))
    busy_cpu = (cpu_s(pid) - before) / max(1, len(busy.first))
    result: dict[str, object] = {
        "added_p50_ms": (quantile(calm.first, 0.5) - quantile(direct.first, 0.5)) * 1000,
        "added_p99_ms": (quantile(calm.first, 0.99) - quantile(direct.first, 0.99)) * 1000,
        "req_per_s": len(busy.first) / took,
        "first_p50_ms": statistics.median(busy.first) * 1000,
        "cpu_ms_calm": calm_cpu * 1000,
        "cpu_ms_busy": busy_cpu * 1000,
        "idle_mb": idle_mb,
        "errors": {**calm.errors, **busy.errors},
    }
    if held:
        streams, memory = asyncio.run(hold(port, pid))
        result |= {"held": len(streams.first), "held_mb": memory, "held_errors": streams.errors}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--routers-python", default="")
    parser.add_argument("--cores", default="1,2")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--engines", default="pdtop,smg,sglang-router")
    parser.add_argument("--workers", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.workers:
        asyncio.run(be_workers())
        return
    every = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {every[-1]})
    child = subprocess.Popen([sys.executable, __file__, "--workers"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    ports = json.loads(child.stdout.readline())
    engines = [e for e in args.engines.split(",") if e == "pdtop" or args.routers_python]
    try:
        with tempfile.TemporaryDirectory() as folder:
            for cores in map(int, args.cores.split(",")):
                for engine in engines:
                    given = router(engine, args.routers_python, ports, set(every[:cores]), Path(folder))
                    with given as (port, pid):
                        found = measure(port, pid, ports[2], args.seconds, cores == 1)
                    shown = {k: round(v, 2) if isinstance(v, float) else v for k, v in found.items()}
                    print(json.dumps({"engine": engine, "cores": cores, **shown}), flush=True)
    finally:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()
