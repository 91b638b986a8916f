"""The answer as it arrives: however the bytes are cut, the same comes out."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtop.cluster.wire import Incoming, NotHttpError, TooLargeError

BODY = bytes(range(256)) * 5


def chunked(body: bytes, size: int, end: bytes = b"0\r\n\r\n") -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%X;ext=1\r\n%b\r\n" % (len(part), part) for part in parts) + end


WHOLE = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "bare line feeds": b"HTTP/1.1 200\nContent-Length: %d\n\n" % len(BODY) + BODY,
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(BODY, 100),
    "one chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n" + chunked(BODY, 5000),
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunked(BODY, 33, b"0\r\nX-Sum: 1\r\nY: 2\r\n\r\n"),
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    + BODY,
}


def feed(incoming: Incoming, data: bytes, cuts: list[int]) -> None:
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        if cut > at:
            incoming.feed(data[at:cut])
            at = cut


@pytest.mark.parametrize("kind", WHOLE)
@given(cuts=st.lists(st.integers(0, 1600), max_size=12))
def test_every_cut_gives_the_same_answer(kind: str, cuts: list[int]) -> None:
    incoming = Incoming(10_000)
    feed(incoming, WHOLE[kind], [cut for cut in cuts if cut <= len(WHOLE[kind])])
    assert incoming.done
    assert incoming.reusable
    assert (incoming.status, b"".join(incoming.chunks), incoming.size) == (200, BODY, len(BODY))


@pytest.mark.parametrize("kind", WHOLE)
def test_byte_by_byte(kind: str) -> None:
    incoming = Incoming(10_000)
    for at in range(len(WHOLE[kind])):
        assert not incoming.done
        incoming.feed(WHOLE[kind][at : at + 1])
    assert incoming.done
    assert b"".join(incoming.chunks) == BODY


@pytest.mark.parametrize("kind", WHOLE)
def test_more_than_announced_ends_the_connection_s_use(kind: str) -> None:
    incoming = Incoming(10_000)
    incoming.feed(WHOLE[kind] + b"HTTP/1.1 200 OK\r\n")
    assert incoming.done
    assert not incoming.reusable
    assert b"".join(incoming.chunks) == BODY


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", True),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", True),
        (b"HTTP/1.1 404 Not Found\r\nconnection: Close\r\ncontent-length: 0\r\n\r\n", False),
        (b"HTTP/1.0 404 Not Found\r\ncontent-length: 0\r\n\r\n", False),
        (b"HTTP/1.0 404 Not Found\r\nConnection: Keep-Alive\r\ncontent-length: 0\r\n\r\n", True),
    ],
)
def test_answers_without_a_body(head: bytes, reusable: bool) -> None:
    incoming = Incoming(100)
    incoming.feed(head)
    assert (incoming.done, incoming.reusable, incoming.chunks) == (True, reusable, [])


def test_a_body_may_end_with_the_connection() -> None:
    incoming = Incoming(100)
    incoming.feed(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert not incoming.done
    incoming.ended()
    assert (incoming.done, incoming.chunks) == (True, [b"abc"])


def test_an_announced_body_may_not() -> None:
    incoming = Incoming(100)
    incoming.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc")
    incoming.ended()
    assert not incoming.done


@pytest.mark.parametrize("kind", ["length", "chunks"])
def test_the_limit(kind: str) -> None:
    incoming = Incoming(100)
    with pytest.raises(TooLargeError):
        incoming.feed(WHOLE[kind])


def test_headers_that_come_twice_are_joined() -> None:
    incoming = Incoming(100)
    incoming.feed(
        b"HTTP/1.1 200 OK\r\nA: 1\r\na: 2\r\nno header\r\nContent-Length: 0\r\ncontent-length: 0\r\n\r\n"
    )
    assert incoming.headers == {"a": "1, 2", "content-length": "0"}


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_no_bytes_do_more_than_the_two_errors(data: bytes, cuts: list[int]) -> None:
    for start in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"):
        incoming = Incoming(200)
        with contextlib.suppress(NotHttpError, TooLargeError):
            feed(incoming, start + data, cuts)
            incoming.ended()
        assert incoming.size <= 200 + len(data)
