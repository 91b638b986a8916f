"""A supervisor on this loop over routers in miniature, with its config.toml, and requests through it."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdtop.cluster.http import Dialler
from pdtop.config.load import load
from pdtop.config.watch import ConfigWatch
from pdtop.supervisor.output import Output
from pdtop.supervisor.starting import Starter
from pdtop.supervisor.supervisor import Supervisor, first_engine

ENGINES = Path(__file__).parent / "engines"
P1, P2, D1, D2 = "10.0.0.1:30001", "10.0.0.2:30001", "10.0.1.1:30001", "10.0.1.2:30001"
_PATIENCE_S = 15.0


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(sock.getsockname()[1]) for sock in held]
    for sock in held:
        sock.close()
    return ports


def two_ports() -> tuple[int, int]:
    first, second = free_ports(2)
    return first, second


@dataclass(slots=True)
class File:
    """The config.toml: what is not given keeps its value."""

    path: Path
    engine: str
    ports: tuple[int, int]  # for requests and for scrapers
    timeout: int = 100  # a key that counts only after a restart
    drained: tuple[str, ...] = ()
    policy: str = "power_of_two"
    further: str = ""

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def metrics_port(self) -> int:
        return self.ports[1]

    def write(self) -> None:
        lines = ["[server]", 'host = "127.0.0.1"', f"port = {self.port}", f'engine = "{self.engine}"']
        lines.append(f"request_timeout_secs = {self.timeout}")
        lines.append(f'metrics_url = "http://127.0.0.1:{self.metrics_port}/metrics"')
        for role, workers in (("prefill", [P1, P2]), ("decode", [D1, D2])):
            lines += [f"[{role}]", f"workers = {json.dumps(workers)}", f'policy = "{self.policy}"']
            lines += [
                line
                for worker in workers
                if worker in self.drained
                for line in (f'[{role}.worker."{worker}"]', "drain = true")
            ]
        draft = self.path.with_suffix(".new")
        draft.write_text("\n".join([*lines, self.further, ""]))
        draft.replace(self.path)


@dataclass(slots=True)
class Scene:
    supervisor: Supervisor
    file: File
    said: io.StringIO
    running: asyncio.Task[None]
    clients: list[Client] = field(default_factory=list)

    async def connect(self, port: int | None = None) -> Client:
        """A client that keeps its connection; to the public port if no other is named."""
        client = Client(*await asyncio.open_connection("127.0.0.1", port or self.file.port))
        self.clients.append(client)
        return client

    async def held_stream(self) -> asyncio.Task[str]:
        """A stream that has begun, and ends when its router gets SIGUSR1."""
        client = await self.connect()
        task = asyncio.create_task(client.stream(hold=True))
        await client.answered.wait()
        return task

    async def get(self, path: str) -> Any:
        """Through the public port, by a connection of its own."""
        client = await self.connect()
        try:
            return json.loads(await client.ask("GET", path))
        finally:
            await client.close()

    async def pid(self) -> int:
        return int((await self.get("/about"))["pid"])

    async def about(self) -> dict[str, str]:
        """Flags of the present router that have one value."""
        words = (await self.get("/about"))["argv"]
        return dict(itertools.pairwise(words))

    async def workers(self) -> set[str]:
        return {worker["url"].removeprefix("http://") for worker in (await self.get("/workers"))["workers"]}

    async def workers_are(self, wanted: set[str]) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while await self.workers() != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def text(self) -> str:
        """All that was said until now."""
        return self.said.getvalue()

    async def until(self, check: Callable[[], bool]) -> None:
        """Return when ``check`` holds; if it never does, show what was said."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not check():
                    assert not self.running.done(), self.running.exception()
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(
                f"it did not happen: {self.supervisor.status()}; {self.said.getvalue()}"
            ) from None

    async def serves(self) -> None:
        await self.until(lambda: self.supervisor.status().state == "serving")


@asynccontextmanager
async def supervised(
    folder: Path,
    engine: str,
    *,
    drained: tuple[str, ...] = (),
    timeout_s: int = 100,
    environ: Mapping[str, str] | None = None,
    further: Sequence[str] = (),
) -> AsyncIterator[Scene]:
    """Started; at the end nothing of it is left."""
    file = File(folder / "config.toml", engine, two_ports(), drained=drained, timeout=timeout_s)
    file.write()
    environ = {**os.environ, "PYTHONPATH": str(ENGINES), **(environ or {})}
    loaded = load(file.path)
    found = first_engine(loaded)
    assert found is not None
    said = io.StringIO()
    output = Output(said, [value for name, value in environ.items() if name.startswith("PDTOP_")])
    async with Dialler() as dialler:
        starter = Starter(dialler, folder, output, environ)
        supervisor = Supervisor(
            ConfigWatch(loaded), found, starter, output, environ, further=further, chance=lambda: 0.5
        )
        await supervisor.listen()
        running = asyncio.create_task(supervisor.run())
        scene = Scene(supervisor, file, said, running)
        try:
            yield scene
        finally:
            for client in scene.clients:
                await client.close()
            supervisor.tell()
            supervisor.tell()
            await asyncio.gather(running, return_exceptions=True)
            output.close()


class Client:
    """One connection, which is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.answered = asyncio.Event()  # an answer has begun

    def send(self, method: str, path: str, body: object = None) -> None:
        content = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)

    async def ask(self, method: str, path: str, body: object = None) -> bytes:
        """The answer's body."""
        self.send(method, path, body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")), head
        self.answered.set()
        if b"chunked" in head:
            return await self._chunks()
        return await self._reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))

    async def _chunks(self) -> bytes:
        found = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            found += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        return found

    async def stream(self, tokens: int = 3, *, hold: bool = False) -> str:
        """The text of a streamed answer."""
        body = {"max_tokens": tokens, "hold": hold}
        return (await self.ask("POST", "/v1/chat/completions", body)).decode()

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
