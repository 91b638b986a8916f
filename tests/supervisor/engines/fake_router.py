"""A router in miniature for the supervisor's tests: flags, workers, streams and signals as the real ones.

It uses the standard library only and starts fast. ``POST /v1/chat/completions`` streams ``max_tokens``
events, each with this process's id; with ``"hold": true`` it waits before the last one until SIGUSR1.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
from pathlib import Path

#: A request timeout with which it does not start.
BAD = 13


class Router:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.workers: dict[str, dict[str, object]] = {}
        self.ids = itertools.count(1)
        self.go = asyncio.Event()
        self.busy = 0
        self.stopping = asyncio.Event()
        self.calls: list[str] = []
        for role, entries in (("prefill", args.prefill or []), ("decode", args.decode or [])):
            for url, *port in entries:
                self.add({"url": url, "worker_type": role, "bootstrap_port": int(port[0]) if port else None})

    def add(self, spec: dict[str, object]) -> None:
        worker_id = f"w{next(self.ids)}"
        self.workers[worker_id] = {"id": worker_id, "is_healthy": True, "load": 0, **spec}

    async def follow(self) -> None:
        """The file with workers, as smg reads it."""
        text = ""
        while self.args.discovery_file:
            if (found := read(self.args.discovery_file)) not in ("", text):
                text = found
                wanted = {entry["url"]: entry for entry in json.loads(text)["workers"]}
                there = {str(worker["url"]): key for key, worker in self.workers.items()}
                for url in there.keys() - wanted.keys():
                    del self.workers[there[url]]
                for url in wanted.keys() - there.keys():
                    self.add(wanted[url])
            await asyncio.sleep(0.02)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not self.stopping.is_set():
                line = (await self.request_line(reader)).decode().split()
                if not line:
                    break
                size = 0
                while (header := (await reader.readline()).strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        size = int(header.partition(b":")[2])
                body = json.loads(await reader.readexactly(size) or b"null")
                self.busy += 1
                try:
                    await self.answer(line[0], line[1], body, writer)
                finally:
                    self.busy -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def request_line(self, reader: asyncio.StreamReader) -> bytes:
        """Empty when the connection is to be closed: it idles and the router has been told to end."""
        reading = asyncio.ensure_future(reader.readline())
        stopping = asyncio.ensure_future(self.stopping.wait())
        await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if reading.done():
            return reading.result()
        reading.cancel()
        return b""

    async def answer(
        self, method: str, path: str, body: dict[str, object], writer: asyncio.StreamWriter
    ) -> None:
        if method != "GET":
            self.calls.append(f"{method} {path.rsplit('/', 1)[0] if path.startswith('/workers/') else path}")
        if path == "/v1/chat/completions":
            await self.stream(body, writer)
            return
        status, content = self.page(method, path, body)
        data = json.dumps(content).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(data)) + data)
        await writer.drain()

    def page(self, method: str, path: str, body: dict[str, object]) -> tuple[int, object]:
        worker_id = path.rpartition("/")[2]
        match method, path:
            case "GET", "/workers":
                return 200, {"workers": list(self.workers.values())}
            case "POST", "/workers":
                self.add(body)
                return 202, {"worker_id": list(self.workers)[-1]}
            case "GET", "/about":
                return 200, {"pid": os.getpid(), "argv": sys.argv, "calls": self.calls}
            case "GET", "/health" | "/metrics":
                return 200, {"pid": os.getpid()}
        if path.startswith("/workers/") and worker_id in self.workers:
            if method == "DELETE":
                del self.workers[worker_id]
                return 202, {}
            return 202 if method != "GET" else 200, self.workers[worker_id]
        return 404, {}

    async def stream(self, body: dict[str, object], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        events = [f"data: {os.getpid()}\n\n".encode()] * int(str(body["max_tokens"]))
        for data in (*events, b"data: [DONE]\n\n"):
            if body.get("hold") and data.endswith(b"[DONE]\n\n"):
                await self.go.wait()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def read(name: str) -> str:
    return Path(name).read_text() if Path(name).exists() else ""


async def run(args: argparse.Namespace) -> None:
    router = Router(args)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, router.stopping.set)
    loop.add_signal_handler(signal.SIGUSR1, router.go.set)
    following = loop.create_task(router.follow())
    main = await asyncio.start_server(router.serve, args.host, args.port)
    metrics = await asyncio.start_server(router.serve, args.prometheus_host, args.prometheus_port)
    print(f"\x1b[32mrouter\x1b[0m on {args.port} with {args.api_key}", flush=True)
    await router.stopping.wait()
    main.close()
    while router.busy:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    metrics.close()
    following.cancel()


def start() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--host", "--prometheus-host", "--discovery-file", "--api-key"):
        parser.add_argument(flag)
    for flag in ("--port", "--prometheus-port", "--request-timeout-secs"):
        parser.add_argument(flag, type=int)
    for flag in ("--prefill", "--decode"):
        parser.add_argument(flag, action="append", nargs="+")
    args, _ = parser.parse_known_args()
    if args.request_timeout_secs == BAD:
        sys.exit(f"error: timeout {BAD} is out of range")
    asyncio.run(run(args))
