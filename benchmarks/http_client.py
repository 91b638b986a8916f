"""What one GET of a metrics page costs with each way of asking: CPU milliseconds, medians of several runs.

    python benchmarks/http_client.py [--workers 256] [--kilobytes 180] [--runs 5]

Self-contained: a child process serves the page on as many loopback ports as there are workers, with
keep-alive, as plain bytes. Only the CPU time of the asking process is counted. Each way reads the whole body
of every worker once per round, all at the same time, as a console does.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from pdtop.cluster.address import Address
from pdtop.cluster.http import Dialler

Ask = Callable[[int], Awaitable[int]]
Way = Callable[[AsyncExitStack, list[str]], Awaitable[Ask]]

ROUNDS = 8
IDENTITY = {"accept-encoding": "identity"}


def page(kilobytes: int) -> bytes:
    """Text of about this size that looks like a worker's page."""
    line = 'sglang:queue_time_seconds_bucket{{le="{}",model_name="m",tp_rank="0",pp_rank="0"}} {}.0\n'
    lines, size, number = [], 0, 0
    while size < kilobytes * 1000:
        number += 1
        lines.append(line.format(number, number))
        size += len(lines[-1])
    return "".join(lines).encode()


async def serve(count: int, kilobytes: int) -> None:
    """Answer on ``count`` free ports for ever; print the ports first."""
    body = page(kilobytes)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: %d\r\n\r\n"
    answer = head % len(body) + body

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport
            self.pending = b""

        def data_received(self, data: bytes) -> None:
            self.pending += data
            while b"\r\n\r\n" in self.pending:
                _, self.pending = self.pending.split(b"\r\n\r\n", 1)
                self.transport.write(answer)

    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Protocol, "127.0.0.1", 0) for _ in range(count)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.Event().wait()


async def plain_aiohttp(stack: AsyncExitStack, urls: list[str]) -> Ask:
    connector = aiohttp.TCPConnector(limit=0)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, headers=IDENTITY))

    async def ask(index: int) -> int:
        async with session.get(urls[index]) as answer:
            return len(await answer.read())

    return ask


async def transport_direct(stack: AsyncExitStack, urls: list[str]) -> Ask:
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    transport = await stack.enter_async_context(
        AiohttpTransport(client=session, verify=ssl.create_default_context())
    )
    requests = [httpx.Request("GET", url, headers=IDENTITY) for url in urls]

    async def ask(index: int) -> int:
        answer = await transport.handle_async_request(requests[index])
        try:
            return sum([len(chunk) async for chunk in answer.aiter_raw()])
        finally:
            await answer.aclose()

    return ask


async def client_on_aiohttp(stack: AsyncExitStack, urls: list[str]) -> Ask:
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    transport = AiohttpTransport(client=session, verify=ssl.create_default_context())
    client = await stack.enter_async_context(
        httpx.AsyncClient(transport=transport, headers=IDENTITY, trust_env=False)
    )

    async def ask(index: int) -> int:
        return len((await client.get(urls[index])).content)

    return ask


async def client_each(stack: AsyncExitStack, urls: list[str]) -> Ask:
    context = ssl.create_default_context()
    clients = [
        await stack.enter_async_context(httpx.AsyncClient(verify=context, headers=IDENTITY, trust_env=False))
        for _ in urls
    ]

    async def ask(index: int) -> int:
        return len((await clients[index].get(urls[index])).content)

    return ask


async def pdtop_dialler(stack: AsyncExitStack, urls: list[str]) -> Ask:
    dialler = await stack.enter_async_context(Dialler())
    addresses = [Address.parse(url.removesuffix("/metrics")) for url in urls]

    async def ask(index: int) -> int:
        return len((await dialler.get(addresses[index], "/metrics")).body)

    return ask


WAYS: dict[str, Way] = {
    "httpx.AsyncClient, one each": client_each,
    "httpx.AsyncClient on httpx-aiohttp": client_on_aiohttp,
    "httpx-aiohttp transport, no client": transport_direct,
    "aiohttp": plain_aiohttp,
    "pdtop.cluster.http.Dialler": pdtop_dialler,
}


async def cost(way: Way, urls: list[str]) -> float:
    """CPU milliseconds a GET after one round of warming up."""
    async with AsyncExitStack() as stack:
        ask = await way(stack, urls)
        sizes = await asyncio.gather(*(ask(index) for index in range(len(urls))))
        assert min(sizes) == max(sizes) > 0
        began = time.process_time()
        for _ in range(ROUNDS):
            await asyncio.gather(*(ask(index) for index in range(len(urls))))
        return 1000 * (time.process_time() - began) / (ROUNDS * len(urls))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--kilobytes", type=int, default=180)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.workers, options.kilobytes))
        return
    command = [sys.executable, __file__, "--serve"]
    command += ["--workers", str(options.workers), "--kilobytes", str(options.kilobytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            urls = [f"http://127.0.0.1:{port}/metrics" for port in server.stdout.readline().split()]
            found: dict[str, list[float]] = {name: [] for name in WAYS}
            for _ in range(options.runs):
                for name, way in WAYS.items():
                    found[name].append(asyncio.run(cost(way, urls)))
        finally:
            server.kill()
    print(f"{options.workers} workers, {options.kilobytes} KB a page; CPU ms a GET: median, lowest, highest")
    for name, values in found.items():
        print(f"  {statistics.median(values):6.3f}  {min(values):.3f} to {max(values):.3f}  {name}")


if __name__ == "__main__":
    main()
