"""Workers that answer with rubbish: byte for byte, endless, misleading; the router stays whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

import pdtop.gateway.dialing as dialing
import pdtop.gateway.probing as probing
import pdtop.gateway.proxy as proxy
from pdtop.config.schema import Config
from pdtop.gateway.app import Gateway
from tests.gateway.test_gateway import router
from tests.simulator.support import client, eventually, get, post

Say = Callable[[asyncio.StreamWriter], Awaitable[None]]
ASK = {"text": "x" * 200, "stream": True, "sampling_params": {"max_new_tokens": 4}}
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def whole(
    body: bytes, head: bytes = b"", status: bytes = b"200 OK", kind: bytes = b"application/json"
) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: %s\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        status,
        kind,
        head,
        len(body),
        body,
    )


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


FINE = STREAM + chunk(b'data: {"text": "a"}\n\n') + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Raw:
    """A worker on a bare socket: for each start of a path the bytes that it says, then it closes."""

    def __init__(self, **says: bytes | Say) -> None:
        self.says = {"/" + name.replace("__", "/"): what for name, what in says.items()}
        self.url = ""
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode()
            self.asked.append(path)
            if b"content-length:" in head.lower():
                size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(size)
            said = next(
                (s for p, s in self.says.items() if path.startswith(p)), whole(b"{}", status=b"404 No")
            )
            if isinstance(said, bytes):
                writer.write(said)
                await writer.drain()
            else:
                await said(writer)
        writer.close()


READY, ABSENT = whole(b"{}"), whole(b"{}", status=b"404 No")


@asynccontextmanager
async def cluster(
    prefill: list[Raw],
    decode: list[Raw],
    timeout_s: float = 30.0,
    policy: str = "round_robin",
) -> AsyncIterator[tuple[Gateway, str]]:
    async with AsyncExitStack() as stack:
        for raw in (*prefill, *decode):
            server = await stack.enter_async_context(await asyncio.start_server(raw.serve, "127.0.0.1", 0))
            raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            raw.says.setdefault("/ready", READY)
        settings = Config.model_validate(
            {
                "server": {"request_timeout_secs": timeout_s},
                "prefill": {"workers": [r.url for r in prefill], "policy": policy},
                "decode": {"workers": [r.url for r in decode], "policy": policy},
                "health": {"interval_secs": 0.02, "timeout_secs": 1.0, "unhealthy_threshold": 2},
            }
        )
        gateway, url = await stack.enter_async_context(router(settings))
        await eventually(lambda: all(b.probes.asked for b in gateway.fleet))
        yield gateway, url


def fails(*parts: bytes) -> Say:
    """Says these parts one after the other, each on its own."""

    async def say(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    return say


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while True:
        writer.write(b" " * 65536)
        await writer.drain()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(whole(b"", b"Location: http://127.0.0.1:9/\r\n", b"307 Redirect"), id="redirect"),
        pytest.param(b"HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", id="upgrade"),
        pytest.param(whole(b"{}", status=b"999 Odd"), id="status"),
        pytest.param(b"\0\xff\0garbage\r\n\r\n", id="garbage"),
        pytest.param(b"", id="nothing"),
        pytest.param(STREAM + b"0\r\n\r\n", id="empty stream"),
        pytest.param(STREAM + b"ZZ\r\n", id="chunk"),
        pytest.param(whole(b"rubbish", b"Content-Encoding: gzip\r\n"), id="gzip"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", id="short"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", id="two"),
        pytest.param(whole(b"{}", b"X-Big: " + b"a" * 100_000 + b"\r\n"), id="header"),
        pytest.param(endless, id="endless"),
    ],
)
async def test_an_answer_that_is_none_is_a_failure_and_another_worker_is_asked(
    said: bytes | Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "MOST_ANSWER_BYTES", 2**20)
    bad, good = Raw(generate=said), Raw(generate=FINE)
    async with cluster([Raw(generate=FINE)], [bad, good]) as (gateway, url), client() as http:
        answer = await post(http, url + "/generate", ASK)
        assert (answer.status, answer.events) == (200, [{"text": "a"}, "[DONE]"])
        assert [b.failed for b in gateway.fleet] == [0, 1, 0]
        assert not gateway.fleet.rooms
        assert [b.inflight for b in gateway.fleet] == [0, 0, 0]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(b"0\r\n\r\n", id="without its last event"),
        pytest.param(b"ZZ\r\n", id="garbage"),
        pytest.param(b"", id="cut"),
    ],
)
async def test_a_stream_that_is_not_whole_says_so(end: bytes) -> None:
    bad = Raw(generate=fails(STREAM + chunk(b'data: {"text": "a"}\n\n'), end))
    async with cluster([Raw(generate=FINE)], [bad]) as (gateway, url), client() as http:
        answer = await post(http, url + "/generate", ASK)
        assert answer.events[0] == {"text": "a"}
        assert answer.events[1]["error"]["type"] == "stream_error"
        assert answer.events[-1] == "[DONE]"
        assert [b.failed for b in gateway.fleet] == [0, 1]


async def test_information_before_the_answer_is_passed_over() -> None:
    said = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + FINE
    async with cluster([Raw(generate=FINE)], [Raw(generate=said)]) as (_, url), client() as http:
        assert (await post(http, url + "/generate", ASK)).events == [{"text": "a"}, "[DONE]"]


async def test_headers_of_a_worker_are_no_labels_and_do_not_speak_for_the_router() -> None:
    head = b"x-smg-error-code: code-%d\r\nUpgrade: h2c\r\nX-Odd: \xff\r\nX-Kept: yes\r\n"
    answers = iter([whole(b"{}", head % n) for n in range(30)])

    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))
        await writer.drain()

    async with cluster([Raw(generate=FINE)], [Raw(generate=say)]) as (_, url), client() as http:
        for _ in range(30):
            answer = await post(http, url + "/generate", ASK)
            assert answer.status == 200
            assert answer.headers["X-Kept"] == "yes"
            assert not {"x-smg-error-code", "Upgrade"} & answer.headers.keys()
        assert b"code-" not in (await get(http, url + "/metrics")).body


DEEP = b"[" * 200_000
NOT_TEXT = whole(json.dumps({"data": [{"id": "\ud800"}]}).encode())


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(whole(DEEP), id="deep"),
        pytest.param(whole(b"{}", kind=b"application/json; charset=rot13"), id="charset"),
        pytest.param(whole(b"\xff\xfe{", kind=b"text/html"), id="no json"),
        pytest.param(whole(b'{"timestamp":"0001-01-01T00:00:00","loads":[{"timestamp":1e999}]}'), id="time"),
        pytest.param(whole(b'{"loads":[{"num_running_reqs":' + b"9" * 4000 + b"}]}"), id="digits"),
        pytest.param(NOT_TEXT, id="half a character"),
        pytest.param(endless, id="endless"),
    ],
)
async def test_probes_survive_what_a_worker_says(said: bytes | Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "LOADS_EVERY_S", 0.01)
    monkeypatch.setattr(dialing, "MOST_PAGE_BYTES", 2**20)
    odd = Raw(generate=FINE, v1__models=said, v1__loads=said)
    async with cluster([Raw(generate=FINE)], [odd]) as (gateway, url), client() as http:
        for start in ("/ready", "/v1/loads"):
            await eventually(lambda start=start: sum(p.startswith(start) for p in odd.asked) > 2)  # type: ignore[misc]
        assert (await get(http, url + "/metrics")).status == 200
        odd.says["/ready"] = whole(b"", status=b"503 No")
        await eventually(lambda: not gateway.fleet.decode.backends[0].probes.healthy)


def serves(model: str) -> bytes:
    return whole(json.dumps({"data": [{"id": model}]}).encode())


async def test_a_worker_that_comes_back_with_another_model_is_known_by_that() -> None:
    other = Raw(generate=FINE, v1__models=serves("old"))
    async with cluster([Raw(generate=FINE, v1__models=serves("old"))], [other]) as (gateway, url):
        decode = gateway.fleet.decode.backends[0]
        assert decode.model == "old"
        other.says |= {"/ready": whole(b"", status=b"503 No"), "/v1/models": serves("new")}
        await eventually(lambda: not decode.probes.healthy)
        other.says["/ready"] = READY
        await eventually(lambda: decode.model == "new")
        async with client() as http:
            names = (await get(http, url + "/v1/models")).json["data"]
        assert [one["id"] for one in names] == ["new", "old"]
