"""What clients see of a router's restart under load, by the way in which it is done; what the hop costs.

    python benchmarks/handover.py --routers-python VENV/bin/python [--engines smg] [--seconds 14]

Forty clients stream all the time: 30 short answers (80 ms), 10 long ones (8 s); half of them keep their
connections, half make a new one for each request. After 3 s the router is restarted in one of these ways:

    stop_start   SIGTERM, wait for the end, start (what a service manager does)
    same_port    SIGTERM, at once a successor on the same port with another metrics port, tried until it holds
    before_stop  the successor first, tried until it holds, then SIGTERM (for smg: within its grace window)
    hand_over    `pdtop router`: a restart-only threshold is changed in config.toml

``refused``: no connection; ``failed``: no answer or not 200; ``cut``: ended without its last event.
``gap_s``: from the first to the last refused connection; ``wait_max_s``: longest wait for a first event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gateway import cpu_s, free_ports, quantile, request, saturate, trickle

MODULES = {"smg": "smg.launch_router", "sglang-router": "sglang_router.launch_router"}
WAYS = ("stop_start", "same_port", "before_stop", "hand_over")
SHORT, LONG = 30, 10
RESTART_AT_S = 3.0


@dataclass(slots=True)
class Seen:
    ok: int = 0
    refused: int = 0
    failed: int = 0
    cut: int = 0
    refused_at: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)

    def shown(self) -> dict[str, object]:
        gap = self.refused_at[-1] - self.refused_at[0] if self.refused_at else 0.0
        return {
            **{name: getattr(self, name) for name in ("ok", "refused", "failed", "cut")},
            "gap_s": round(gap, 2),
            "wait_max_s": round(max(self.waits, default=0.0), 2),
            "notes": self.notes,
        }


async def client(port: int, keeps: bool, content: bytes, until: float, seen: Seen) -> None:
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    while time.perf_counter() < until:
        if writer is None or reader is None:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                seen.refused += 1
                seen.refused_at.append(time.perf_counter())
                await asyncio.sleep(0.05)
                continue
        end = await one(reader, writer, content, seen)
        if end == "ok":
            seen.ok += 1
        elif end == "cut":
            seen.cut += 1
        else:
            seen.failed += 1
            seen.notes[end] = seen.notes.get(end, 0) + 1
        if end != "ok" or not keeps or reader.at_eof():
            writer.close()
            reader = writer = None
    if writer is not None:
        writer.close()


async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes, seen: Seen) -> str:
    """``ok``, ``cut``, or why it failed."""
    started, got = time.perf_counter(), b""
    first = 0.0
    try:
        writer.write(content)
        while not got.endswith(b"\r\n0\r\n\r\n"):
            data = await reader.read(65536)
            if not data:
                break
            got += data
            if not first and b"data:" in got:
                first = time.perf_counter()
                seen.waits.append(first - started)
            if not got.startswith(b"HTTP/1.1 200"):
                return got[9:12].decode() or "short"
    except OSError as error:
        return "cut" if first else type(error).__name__
    if b"[DONE]" in got and b'"error"' not in got:
        return "ok"
    return "cut" if first else "closed"


async def load(port: int, seconds: float, seen: Seen) -> None:
    until = time.perf_counter() + seconds
    await asyncio.gather(
        *(client(port, n % 2 == 0, request(16), until, seen) for n in range(SHORT)),
        *(client(port, n % 2 == 0, request(99), until, seen) for n in range(LONG)),
    )


def command(
    engine: str, python: str, workers: Sequence[int], port: int, metrics: int, threshold: int
) -> list[str]:
    words = [python, "-m", MODULES[engine], "--host", "127.0.0.1", "--port", str(port), "--pd-disaggregation"]
    words += ["--policy", "round_robin", "--balance-abs-threshold", str(threshold)]
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
    for worker in workers[:2]:
        words += ["--prefill", f"http://127.0.0.1:{worker}", "8998"]
    for worker in workers[2:]:
        words += ["--decode", f"http://127.0.0.1:{worker}"]
    return words


def config(engine: str, python: str, workers: Sequence[int], ports: Sequence[int], threshold: int) -> str:
    pools = zip(("prefill", "decode"), (workers[:2], workers[2:]), strict=True)
    lines = ["[server]", 'host = "127.0.0.1"', f"port = {ports[0]}", f'engine = "{engine}"']
    lines += [f'engine_python = "{python}"', f"status_port = {ports[2]}"]
    lines += [f'metrics_url = "http://127.0.0.1:{ports[1]}/metrics"']
    for role, members in pools:
        lines += [f"[{role}]", f"workers = {json.dumps([f'127.0.0.1:{worker}' for worker in members])}"]
        lines += ['policy = "round_robin"', f"balance_abs_threshold = {threshold}"]
    for worker in workers[:2]:
        lines += [f'[prefill.worker."127.0.0.1:{worker}"]', "bootstrap_port = 8998"]
    return "\n".join([*lines, "[health]", f"interval_secs = {threshold}", ""])


class Processes:
    """What is started here; all of it is killed at the end."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        self._all.append(process)
        return process

    def end(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._all:
            try:
                process.wait(8)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def processes(folder: Path, name: str) -> Iterator[Processes]:
    made = Processes(folder / f"{name}.log")
    try:
        yield made
    finally:
        made.end()


async def ready(port: int) -> None:
    for _ in range(300):
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /readiness HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            if answer.startswith(b"HTTP/1.1 200") and b"4" in answer.rpartition(b"total_workers")[2]:
                return
        await asyncio.sleep(0.1)
    raise SystemExit("the router does not get ready; see its log")


async def persist(made: Processes, words: Sequence[str]) -> None:
    """Start it again and again until it stays."""
    while True:
        process = made.start(words)
        await asyncio.sleep(0.05)
        for _ in range(20):
            if process.poll() is not None:
                break
            await asyncio.sleep(0.05)
        else:
            return


async def restart(
    way: str, engine: str, python: str, workers: Sequence[int], seconds: float, folder: Path
) -> Seen:
    ports, seen = free_ports(4), Seen()
    with processes(folder, f"{engine}-{way}") as made:
        file = folder / "config.toml"
        file.write_text(config(engine, python, workers, ports, 5))
        if way == "hand_over":
            first = made.start([sys.executable, "-m", "pdtop.supervisor", str(file), "--grace", "4"])
        else:
            first = made.start(command(engine, python, workers, ports[0], ports[1], 5))
        await ready(ports[0])
        loading = asyncio.create_task(load(ports[0], seconds, seen))
        await asyncio.sleep(RESTART_AT_S)
        again = command(engine, python, workers, ports[0], ports[3], 6)
        if way == "hand_over":
            file.write_text(config(engine, python, workers, ports, 6))
        elif way == "stop_start":
            first.send_signal(signal.SIGTERM)
            await asyncio.to_thread(first.wait)
            made.start(again)
        elif way == "same_port":
            first.send_signal(signal.SIGTERM)
            await persist(made, again)
        else:
            trying = asyncio.create_task(persist(made, again))
            await asyncio.sleep(0.3)
            first.send_signal(signal.SIGTERM)
            await trying
        await loading
    return seen


async def price(
    engine: str, python: str, workers: Sequence[int], seconds: float, folder: Path
) -> dict[str, object]:
    """The same engine without and with the hop in front of it, in turns."""
    ports = free_ports(4)
    found: dict[str, object] = {}
    with processes(folder, f"{engine}-price") as made:
        file = folder / "config.toml"
        file.write_text(config(engine, python, workers, ports, 5))
        made.start(command(engine, python, workers, ports[3], free_ports(1)[0], 5))
        hop = made.start([sys.executable, "-m", "pdtop.supervisor", str(file), "--grace", "1"])
        await ready(ports[3])
        await ready(ports[0])
        calm: dict[str, list[float]] = {"direct": [], "hop": []}
        cpu = 0.0
        for _ in range(3):
            calm["direct"] += (await trickle(ports[3], 50, seconds / 3)).first
            before = cpu_s(hop.pid)
            calm["hop"] += (await trickle(ports[0], 50, seconds / 3)).first
            cpu += cpu_s(hop.pid) - before
        for q in (0.5, 0.99):
            added = quantile(calm["hop"], q) - quantile(calm["direct"], q)
            found[f"added_p{q * 100:g}_ms"] = round(added * 1000, 2)
        found["hop_cpu_ms_per_request"] = round(cpu / len(calm["hop"]) * 1000, 2)
        for name, port in (("direct", ports[3]), ("hop", ports[0])):
            before = cpu_s(hop.pid)
            busy, took = await saturate(port, seconds)
            found[f"{name}_req_per_s"] = round(len(busy.first) / took)
            if name == "hop":
                found["hop_cpu_share"] = round((cpu_s(hop.pid) - before) / took, 2)
            found["errors"] = busy.errors
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--routers-python", required=True)
    parser.add_argument("--engines", default="smg,sglang-router")
    parser.add_argument("--ways", default=",".join((*WAYS, "price")))
    parser.add_argument("--seconds", type=float, default=14.0)
    args = parser.parse_args()
    gateway = str(Path(__file__).with_name("gateway.py"))
    child = subprocess.Popen(
        [sys.executable, gateway, "--workers"], stdout=subprocess.PIPE, env={**os.environ}
    )
    assert child.stdout is not None
    workers = json.loads(child.stdout.readline())
    try:
        with tempfile.TemporaryDirectory() as folder:
            for engine in args.engines.split(","):
                for way in args.ways.split(","):
                    given = (engine, args.routers_python, workers)
                    if way == "price":
                        found = asyncio.run(price(*given, 6.0, Path(folder)))
                    else:
                        found = asyncio.run(restart(way, *given, args.seconds, Path(folder))).shown()
                    print(json.dumps({"engine": engine, "way": way, **found}), flush=True)
    finally:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()
