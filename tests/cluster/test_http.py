"""Every way an exchange can go, against a stub on loopback in virtual time."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pdtop.cluster.address import Address
from pdtop.cluster.http import BearerKey, Dialler, KeyRefusedError
from pdtop.cluster.model import State
from pdtop.cluster.readings import Answer
from tests.cluster.stub_server import Answering, Reply, Request, StubServer, always, by_path, self_signed
from tests.cluster.virtual_time import run

KEY = BearerKey("s3cret-key-value", "PDTOP_API_KEY")
PAGE = b"sglang:num_running_reqs 5.0\n" * 2000


def ask(answering: Answering | Reply, path: str = "/metrics", **kw: Any) -> tuple[Answer, StubServer]:
    """One GET of a stub."""
    limit = kw.pop("max_body_bytes", 2**20)

    async def main() -> tuple[Answer, StubServer]:
        handler = always(answering) if isinstance(answering, Reply) else answering
        async with StubServer(handler) as server, Dialler(max_body_bytes=limit) as dialler:
            return await dialler.get(Address.parse(server.url), path, **kw), server

    return run(main())


def test_a_whole_answer() -> None:
    answer, server = ask(Reply(headers={"Content-Type": "text/plain", "Set-Cookie": "a=b"}, body=PAGE))
    assert (answer.status, answer.failure, answer.truncated, answer.detail) == (200, None, False, "")
    assert answer.body == PAGE
    assert answer.headers == {"content-type": "text/plain"}  # nothing that nobody looks at is kept
    sent = server.requests[0].headers
    assert sent["host"] == f"127.0.0.1:{server.port}"
    assert "authorization" not in sent
    assert "cookie" not in sent


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=PAGE, packed=True),
        Reply(body=PAGE, chunked=True, chunk_bytes=7),
        Reply(body=PAGE, chunked=True, packed=True, chunk_bytes=11),
        Reply(body=PAGE, drip=(9, 1.5)),
        Reply(body=gzip.compress(PAGE)),  # packed, and nobody says so
        Reply(body=PAGE, headers={"Content-Encoding": "gzip"}),  # said to be packed, and is not
        Reply(raw=b"HTTP/1.1 200 OK\r\n\r\n" + PAGE),  # its end is the connection's end
        Reply(raw=b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n\r\n" % len(PAGE) + PAGE),
        Reply(raw=b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + PAGE),
        Reply(body=gzip.compress(PAGE[:28000]) + gzip.compress(PAGE[28000:])),  # two members
    ],
)
def test_the_same_page_in_every_transport(reply: Reply) -> None:
    answer, _ = ask(reply)
    assert (answer.status, answer.failure, answer.body == PAGE) == (200, None, True)


def test_no_answer_in_time() -> None:
    answer, _ = ask(Reply(hang=True), timeout_s=2.0)
    assert answer.failure is State.TIMEOUT
    assert answer.seconds == pytest.approx(2.0, abs=0.01)
    assert "2 s" in answer.detail


def test_one_byte_a_second_does_not_keep_it_alive() -> None:
    answer, _ = ask(Reply(body=b"x" * 60, drip=(60, 59)), timeout_s=5.0)
    assert answer.failure is State.TIMEOUT
    assert answer.seconds == pytest.approx(5.0, abs=0.01)
    assert answer.detail.endswith("(5 bytes came)") or answer.detail.endswith("(6 bytes came)")


def test_endless_bytes_end_at_the_limit() -> None:
    answer, _ = ask(Reply(endless=b"a" * 1000), max_body_bytes=100_000)
    assert answer.failure is State.PARTIAL
    assert (len(answer.body), answer.truncated) == (100_000, True)
    assert "larger than 0.0953674 MiB" in answer.detail


def test_a_gzip_bomb_ends_at_the_limit() -> None:
    answer, _ = ask(Reply(body=b"\0" * 50_000_000, packed=True), max_body_bytes=100_000)
    assert answer.failure is State.PARTIAL
    assert len(answer.body) == 100_000
    assert "unpacked" in answer.detail


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(body=PAGE[:1000], announce=5000), "ended early, after 1000 bytes"),
        (Reply(raw=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n9\r\nfg"), "7 bytes"),
        (Reply(body=gzip.compress(PAGE)[:-40]), "gzip body ends early"),
        (Reply(body=gzip.compress(b"abc")[:10] + b"\x07" * 60), "gzip body is damaged"),
    ],
)
def test_half_a_body_is_partial(reply: Reply, words: str) -> None:
    answer, _ = ask(reply)
    assert (answer.status, answer.failure, answer.truncated) == (200, State.PARTIAL, True)
    assert words in answer.detail


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"220 mail ESMTP\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", "no number"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", "two lengths"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n", "not asked for"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "chunks"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n", "another protocol"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000, "does not end"),
    ],
)
def test_what_is_not_http(raw: bytes, words: str) -> None:
    answer, _ = ask(Reply(raw=raw))
    assert answer.failure is State.HTTP_ERROR
    assert words in answer.detail


def test_closed_without_an_answer() -> None:
    answer, _ = ask(Reply(raw=b""))
    assert (answer.failure, answer.status) == (State.REFUSED, None)
    assert "without an answer" in answer.detail


def test_nothing_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = Address.parse(f"127.0.0.1:{unused.getsockname()[1]}")

        async def main() -> Answer:
            async with Dialler() as dialler:
                return await dialler.get(address, "/metrics")

        answer = run(main())
    assert answer.failure is State.REFUSED
    assert "refused" in answer.detail


def test_a_redirect_within_the_origin_is_followed_with_the_key() -> None:
    replies = {
        "/metrics": Reply(307, {"location": "/metrics/"}),
        "/metrics/": Reply(body=PAGE),
    }
    answer, server = ask(by_path(replies), key=KEY)
    assert (answer.status, answer.body) == (200, PAGE)
    assert [request.path for request in server.requests] == ["/metrics", "/metrics/"]
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer s3cret-key-value"}


@pytest.mark.parametrize(
    "location",
    ["/metrics", "/b", "http://127.0.0.1:{port}/c"],
)
def test_redirects_in_a_circle(location: str) -> None:
    def answering(request: Request) -> Reply:
        port = request.headers["host"].partition(":")[2]
        others = {"/b": "/metrics", "/c": "/d", "/d": "/e", "/e": "/f"}
        return Reply(302, {"location": others.get(request.route, location.format(port=port))})

    answer, server = ask(answering)
    assert answer.failure is State.REDIRECT
    assert "circle" in answer.detail
    assert len(server.requests) <= 4


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_another_origin_is_not_followed_and_never_gets_the_key(scheme: str) -> None:
    async def main() -> tuple[Answer, StubServer]:
        async with StubServer(always(Reply(body=PAGE))) as other, Dialler() as dialler:
            away = f"{scheme}://user:pass@127.0.0.1:{other.port}/login?token=abc"
            async with StubServer(always(Reply(302, {"location": away}))) as server:
                answer = await dialler.get(Address.parse(server.url), "/metrics", key=KEY)
                return answer, other

    answer, other = run(main())
    assert (answer.failure, answer.status) == (State.REDIRECT, 302)
    assert f"127.0.0.1:{other.port}/login" in answer.detail
    assert "token" not in answer.detail
    assert "pass" not in answer.detail
    assert other.connections == 0


def test_only_a_get_follows_redirects() -> None:
    async def main() -> tuple[Answer, StubServer]:
        async with StubServer(always(Reply(307, {"location": "/x"}))) as server, Dialler() as dialler:
            return await dialler.request("PATCH", Address.parse(server.url), "/w", content=b"{}"), server

    answer, server = run(main())
    assert answer.failure is State.REDIRECT
    assert [(r.method, r.body, r.headers["content-type"]) for r in server.requests] == [
        ("PATCH", b"{}", "application/json")
    ]


def test_connections_are_used_again_and_replaced_when_the_server_closed_them() -> None:
    async def main() -> tuple[list[Answer], StubServer]:
        answers = iter([Reply(body=b"1"), Reply(body=b"2", close=True), Reply(body=b"3"), Reply(raw=b"")])
        async with StubServer(lambda _: next(answers)) as server, Dialler() as dialler:
            address = Address.parse(server.url)
            got = [await dialler.get(address, "/") for _ in range(3)]
            connections = server.connections
            assert connections == 2  # the second answer said that it is the last on its connection
            return got, server

    got, _ = run(main())
    assert [answer.body for answer in got] == [b"1", b"2", b"3"]


def test_an_idle_connection_that_breaks_under_the_request_is_replaced_once() -> None:
    async def main() -> tuple[Answer, Answer, int]:
        replies = iter([Reply(body=b"1"), Reply(raw=b""), Reply(body=b"2")])
        async with StubServer(lambda _: next(replies)) as server, Dialler() as dialler:
            address = Address.parse(server.url)
            first = await dialler.get(address, "/")
            second = await dialler.get(address, "/")
            return first, second, server.connections

    first, second, connections = run(main())
    assert (first.body, second.body, connections) == (b"1", b"2", 2)


def tls_case(main: Callable[[StubServer, bytes], Coroutine[Any, Any, Answer]], *names: str) -> Answer:
    tls = self_signed(*names)

    async def around() -> Answer:
        async with StubServer(always(Reply(body=PAGE)), tls=tls.server) as server:
            return await main(server, tls.ca_pem)

    return run(around())


def test_an_unknown_ca_is_refused() -> None:
    async def main(server: StubServer, _: bytes) -> Answer:
        async with Dialler() as dialler:
            return await dialler.get(Address.parse(server.url), "/metrics", key=KEY)

    answer = tls_case(main, "127.0.0.1")
    assert answer.failure is State.TLS
    assert "not trusted" in answer.detail


def test_a_ca_file_and_a_mapped_name(tmp_path: Path) -> None:
    async def main(server: StubServer, ca_pem: bytes) -> Answer:
        (tmp_path / "ca.pem").write_bytes(ca_pem)
        mapping = {"router.example.net:443": f"127.0.0.1:{server.port}"}
        async with Dialler(ca_file=tmp_path / "ca.pem", connect_to=mapping) as dialler:
            answer = await dialler.get(Address.parse("https://router.example.net"), "/metrics")
            assert server.requests[0].headers["host"] == "router.example.net"
            return answer

    answer = tls_case(main, "router.example.net")
    assert (answer.failure, answer.body) == (None, PAGE)


def test_a_certificate_for_another_name(tmp_path: Path) -> None:
    async def main(server: StubServer, ca_pem: bytes) -> Answer:
        (tmp_path / "ca.pem").write_bytes(ca_pem)
        async with Dialler(ca_file=tmp_path / "ca.pem") as dialler:
            return await dialler.get(Address.parse(server.url), "/metrics")

    answer = tls_case(main, "router.example.net")
    assert answer.failure is State.TLS
    assert "127.0.0.1" in answer.detail


def test_a_ca_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")

    async def main(server: StubServer, _: bytes) -> Answer:
        async with Dialler(ca_file=tmp_path / "empty.pem") as dialler:
            return await dialler.get(Address.parse(server.url), "/metrics")

    answer = tls_case(main, "127.0.0.1")
    assert answer.failure is State.TLS
    assert "empty.pem" in answer.detail


def test_https_to_a_plain_port() -> None:
    async def main() -> Answer:
        async with StubServer(always(Reply())) as server, Dialler() as dialler:
            return await dialler.get(Address.parse(server.url.replace("http:", "https:")), "/metrics")

    answer = run(main())
    assert answer.failure is State.TLS
    assert "http://" in answer.detail


def test_user_and_password_of_the_address_are_sent_as_basic_authentication() -> None:
    async def main() -> Request:
        async with StubServer(always(Reply(body=b"x"))) as server, Dialler() as dialler:
            await dialler.get(Address.parse(server.url.replace("//", "//ops:p%40ss@")), "/", key=KEY)
            return server.requests[0]

    assert run(main()).headers["authorization"] == "Basic b3BzOnBAc3M="


def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    answer, _ = ask(Reply(body=b"direct"))
    assert answer.body == b"direct"


@pytest.mark.parametrize(
    "value", ["", "   ", "\n", "two words", "line\r\nX-Evil: 1", "tab\tkey", "schlüssel"]
)
def test_values_that_are_no_keys(value: str) -> None:
    if value.strip():
        with pytest.raises(KeyRefusedError) as refused:
            BearerKey.from_env("K", {"K": value})
        assert value.strip() not in str(refused.value)
    else:
        assert BearerKey.from_env("K", {"K": value}) is None
        with pytest.raises(KeyRefusedError):
            BearerKey(value)


def test_a_key_is_trimmed_and_prints_as_its_variable() -> None:
    key = BearerKey.from_env("PDTOP_API_KEY", {"PDTOP_API_KEY": " abc123\n"})
    assert key is not None
    assert key.authorization == "Bearer abc123"
    assert "abc123" not in f"{key!r} {key}"
    assert BearerKey.from_env(None, {}) is None
    assert BearerKey.from_env("OTHER", {"PDTOP_API_KEY": "x"}) is None


def test_many_at_once_do_not_wait_for_one_that_hangs() -> None:
    async def main() -> list[Answer]:
        def answering(request: Request) -> Reply:
            return Reply(hang=True) if request.path == "/0" else Reply(body=request.path.encode())

        async with StubServer(answering) as server, Dialler() as dialler:
            address = Address.parse(server.url)
            return await asyncio.gather(*(dialler.get(address, f"/{n}") for n in range(20)))

    answers = run(main())
    assert answers[0].failure is State.TIMEOUT
    assert all(answer.failure is None and answer.seconds < 0.5 for answer in answers[1:])


@pytest.mark.parametrize("steps", range(14))
def test_cancelled_at_any_step_no_socket_stays_open(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[socket.socket] = []

    async def main(port: int) -> None:
        loop = asyncio.get_running_loop()
        connect = loop.sock_connect

        async def noted(sock: socket.socket, address: tuple[str, int]) -> None:
            dialled.append(sock)
            await connect(sock, address)

        monkeypatch.setattr(loop, "sock_connect", noted)
        async with Dialler() as dialler:
            asking = asyncio.create_task(dialler.get(Address.parse(f"http://127.0.0.1:{port}"), "/"))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        await asyncio.sleep(0)  # an aborted connection closes at its turn

    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        run(main(never_answers.getsockname()[1]))
    assert [sock for sock in dialled if sock.fileno() != -1] == []
