"""Headers that are no text: a client's own trouble, never the router's or a worker's."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from tests.gateway.test_gateway import CHAT, config, router
from tests.simulator.support import DECODE, PREFILL, client, post, workers


async def status_of(url: str, path: str, *headers: bytes, body: bytes = b"") -> int:
    """Of a request with these header lines, byte for byte."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    method = b"POST" if body else b"GET"
    lines = [b"%s %s HTTP/1.1" % (method, path.encode()), b"Host: r", b"Connection: close", *headers]
    lines += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)] if body else []
    writer.write(b"\r\n".join([*lines, b"", body]))
    try:
        answer = await reader.read()
    finally:
        writer.close()
    return int(answer.split(b" ", 2)[1])


async def test_a_key_that_is_no_text_is_a_wrong_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDTOP_API_KEY", "k")
    async with (
        workers(PREFILL, DECODE) as running,
        router(config(running)) as (_, url),
    ):
        assert await status_of(url, "/workers", b"Authorization: Bearer \xff") == 401


@pytest.mark.parametrize(
    "header", [b"Authorization: Bearer \xff", b"X-Request-ID: \xff", b"traceparent: \xff"]
)
async def test_a_header_that_is_no_text_harms_no_worker(header: bytes) -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        router(config(running)) as (_, url),
        client() as http,
    ):
        body = json.dumps(CHAT).encode()
        for _ in range(8):
            assert await status_of(url, "/v1/chat/completions", header, body=body) < 500
        assert (await post(http, url + "/v1/chat/completions", CHAT)).status == 200
