"""Clients that are slow, gone, stuck or malicious: they take nothing from others and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadStatusLine
from aiohttp.test_utils import make_mocked_request

import pdtop.gateway.proxy as proxy
from pdtop.gateway.__main__ import is_own_fault
from pdtop.gateway.app import Gateway
from pdtop.gateway.inference import read_inference
from tests.gateway.test_faults import begin_and_hang, fine, hang
from tests.gateway.test_faults import cluster as fakes
from tests.gateway.test_gateway import CHAT, config, router
from tests.gateway.test_hostile_workers import ASK, FINE, STREAM, Raw, chunk, cluster
from tests.simulator.support import DECODE, PREFILL, client, eventually, get, post, workers

HEAD = b"POST /generate HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


def idle(gateway: Gateway) -> bool:
    assert gateway._proxy is not None
    busy = gateway._proxy._inflight or gateway.fleet.rooms
    return not busy and all(not b.inflight and not b.legs and not b.tokens for b in gateway.fleet)


async def test_a_body_that_never_arrives_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "BODY_S", 0.05)
    async with cluster([Raw(generate=FINE)], [Raw(generate=FINE)]) as (gateway, url):
        async with connection(url) as (reader, writer):
            writer.write(HEAD + b'Content-Length: 100\r\n\r\n{"text"')
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 408 ")
        await eventually(lambda: idle(gateway))


async def test_a_client_that_stops_reading_is_cut_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy, "LAST_WORDS_S", 0.05)

    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM)
        while True:
            writer.write(chunk(b"data: " + b"x" * 65536 + b"\n\n"))
            await writer.drain()

    body = b'{"text": "x", "stream": true}'
    async with (
        cluster([Raw(generate=FINE)], [Raw(generate=flood)], timeout_s=1.0) as (gateway, url),
        connection(url) as (reader, writer),
    ):
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        await reader.readuntil(b"\r\n\r\n")
        await eventually(lambda: idle(gateway))
        with suppress(ConnectionError):
            while await reader.read(65536):  # what is under way, then the end
                pass


@pytest.mark.parametrize("complete", [False, True])
async def test_last_words_that_nobody_takes_are_not_waited_for(
    complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "LAST_WORDS_S", 0.01)

    class Stuck(web.StreamResponse):
        async def write(self, data: object) -> None:
            pass

        async def write_eof(self, data: bytes = b"") -> None:
            await asyncio.Event().wait()

    transport = Mock()
    request = make_mocked_request("POST", "/generate", transport=transport)
    inference = read_inference(b'{"text": "x"}')
    call = proxy.Call(request, inference, ("",) * 5, complete=complete)
    await proxy._broken(call, Stuck(), "x")
    transport.abort.assert_called_once_with()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(HEAD, id="half a head"),
        pytest.param(HEAD + b"Content-Length: 40\r\n\r\n{", id="half a body"),
        pytest.param(HEAD + b'Content-Length: 29\r\n\r\n{"text": "x", "stream": true}', id="whole"),
    ],
)
async def test_a_client_that_goes_at_any_time_leaves_nothing(sent: bytes) -> None:
    for serve in (hang, begin_and_hang, fine):
        async with fakes([fine, hang], [serve]) as (gateway, url, _):
            for _ in range(4):
                async with connection(url) as (_, writer):
                    writer.write(sent)
                    await writer.drain()
                    await asyncio.sleep(0)
            await eventually(lambda gateway=gateway: idle(gateway))  # type: ignore[misc]


SMUGGLED = b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd" + SMUGGLED,
        HEAD + b"Content-Length: +4\r\n\r\nabcd" + SMUGGLED,
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"GET /health HTTP/1.1\r\nHost: r\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: r\r\n\r\n",
    ],
)
async def test_requests_of_doubtful_length_are_refused_and_end_the_connection(sent: bytes) -> None:
    async with (
        cluster([Raw(generate=FINE)], [Raw(generate=FINE)]) as (gateway, url),
        connection(url) as (
            reader,
            writer,
        ),
    ):
        writer.write(sent)
        answer = await reader.read()
        assert answer.split(b" ", 2)[1] == b"400"
        assert answer.count(b"HTTP/1.") == 1
        assert idle(gateway)


async def test_five_hundred_idle_connections_are_no_trouble() -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        router(config(running)) as (gateway, url),
        client() as http,
    ):
        place = urlsplit(url)
        opened = [await asyncio.open_connection(place.hostname, place.port) for _ in range(500)]
        try:
            for number, (_, writer) in enumerate(opened):
                writer.write(HEAD if number % 2 else b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n")
            assert (await post(http, url + "/v1/chat/completions", CHAT)).status == 200
        finally:
            for _, writer in opened:
                writer.transport.abort()
        await eventually(lambda: idle(gateway))


@pytest.mark.parametrize("policy", ["prefix_hash", "cache_aware", "pair_aware"])
@pytest.mark.parametrize(
    "body",
    [
        {"text": "\ud800", "stream": True},
        {"messages": [{"role": "user", "content": "\udfff"}], "text": None, "model": "\ud800"},
        {"text": [], "stream": "yes"},
        {"text": [["x"]], "model": {"a": 1}},
        {"input_ids": [[1, 2], [3]], "sampling_params": [1]},
        {"prompt": {"a": 1}, "max_tokens": -1, "bootstrap_room": "mine"},
    ],
)
async def test_odd_bodies_reach_the_workers(policy: str, body: dict[str, Any]) -> None:
    p, d, other = (Raw(generate=FINE) for _ in range(3))
    async with cluster([p], [d, other], policy=policy) as (_, url), client() as http:
        assert (await post(http, url + "/generate", body)).status == 200
        assert (await get(http, url + "/metrics")).status == 200


@pytest.mark.parametrize(
    "body",
    [
        {"weight": 10**400},
        {"weight": True},
        {"priority": 10**400},
        {"bootstrap_port": 10**400},
        {"labels": {"a": 1}},
        {"drain": "yes"},
        {"api_key": "a\nb"},
    ],
)
async def test_a_change_that_is_none_is_refused(body: dict[str, Any]) -> None:
    async with cluster([Raw()], [Raw()]) as (gateway, url), client() as http:
        worker = gateway.fleet.decode.backends[0]
        before = worker.as_json(0.0)
        async with http.patch(f"{url}/workers/{worker.worker_id}", json=body) as answer:
            assert answer.status == 400
            assert answer.headers["x-smg-error-code"] == "BAD_REQUEST"
        assert worker.as_json(0.0) == before


@pytest.mark.parametrize(
    "address",
    [
        "http://",
        "http://[::1",
        "http://a:99999999",
        "http://a:0",
        "http://a:x",
        "http://a:1?api_key=secret",
        "http://a:1#x",
        "http://user:secret@a:1",
        "http://a:1/path",
        "http://a b:1",
        "http://a\\b:1",
        "http://" + "a" * 64 + ":1",
        "ftp://a:1",
    ],
)
async def test_what_is_no_address_of_a_worker_is_not_added(address: str) -> None:
    async with cluster([Raw()], [Raw()]) as (gateway, url), client() as http:
        answer = await post(http, url + "/workers", {"url": address, "worker_type": "decode"})
        assert answer.status == 400
        assert len(gateway.fleet.decode) == 1


@pytest.mark.parametrize(
    "path", ["..", "%2e%2e", "..%2f..%2fconfig", "%00", "x" * 5000, "%ff", "{id}", "1;drop"]
)
async def test_an_id_that_is_none_is_refused(path: str) -> None:
    async with cluster([Raw()], [Raw()]) as (_, url), connection(url) as (reader, writer):
        line = f"DELETE /workers/{path} HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n"
        writer.write(line.encode())
        answer = await reader.read()
        assert answer.split(b" ", 2)[1] in (b"400", b"404", b"405")


async def test_clients_make_no_series() -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        router(config(running)) as (_, url),
        client() as http,
    ):
        await post(http, url + "/v1/chat/completions", CHAT)
        await post(http, url + "/v1/chat/completions", {**CHAT, "model": "other"})
        await get(http, url + "/nowhere")
        await post(http, url + "/generate", [])
        async with http.request("BREW", url + "/workers/7"):
            pass
        size = len((await get(http, url + "/metrics")).body.splitlines())
        for number in range(20):
            await post(http, url + "/v1/chat/completions", {**CHAT, "model": f"m{number}"})
            await get(http, f"{url}/nowhere/{number}")
            async with http.request(f"BREW{number}", f"{url}/workers/{number}"):
                pass
            async with http.post(url + "/generate", data=json.dumps(number)) as answer:
                assert answer.status == 400
        assert len((await get(http, url + "/metrics")).body.splitlines()) <= size + 2


def test_what_is_no_request_is_not_logged() -> None:
    def record(failure: Exception) -> logging.LogRecord:
        return logging.LogRecord("x", logging.ERROR, "x", 1, "x", (), (type(failure), failure, None))

    assert not is_own_fault(record(BadStatusLine("x")))
    assert is_own_fault(record(ValueError("x")))
    assert is_own_fault(logging.LogRecord("x", logging.ERROR, "x", 1, "x", (), None))


async def test_workers_that_come_and_go_leave_no_series() -> None:
    stays, goes = Raw(generate=FINE), Raw(generate=FINE)
    async with cluster([Raw(generate=FINE)], [stays, goes]) as (gateway, url), client() as http:
        for _ in range(2):
            assert (await post(http, url + "/generate", ASK)).status == 200
        assert (await get(http, url + "/metrics")).body.count(goes.url.encode()) > 8
        gateway.fleet.remove(gateway.fleet.decode.backends[1])
        page = (await get(http, url + "/metrics")).body
        assert goes.url.encode() not in page
        assert page.count(stays.url.encode()) > 8
        assert (await post(http, url + "/workers", {"url": goes.url, "worker_type": "decode"})).status == 202
        for _ in range(2):
            await post(http, url + "/generate", ASK)
        assert goes.url.encode() in (await get(http, url + "/metrics")).body
