"""Every way of writing an address, and what is dialled for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtop.cluster.address import Address, AddressError, chat_url


@pytest.mark.parametrize(
    ("text", "key", "metrics_url", "rank"),
    [
        ("10.0.2.21:30001", "10.0.2.21:30001", "http://10.0.2.21:30001/metrics", None),
        ("  10.0.2.21:30001 ", "10.0.2.21:30001", "http://10.0.2.21:30001/metrics", None),
        ("http://10.0.2.21:30001/", "10.0.2.21:30001", "http://10.0.2.21:30001/metrics", None),
        ("HTTP://Node-7.Example.NET:30001", "node-7.example.net:30001", None, None),
        ("node-7.example.net.:30001", "node-7.example.net:30001", None, None),
        ("http://10.0.2.21:30001@0", "10.0.2.21:30001", "http://10.0.2.21:30001/metrics", "0"),
        ("http://10.0.2.21:30001@12/", "10.0.2.21:30001", "http://10.0.2.21:30001/metrics", "12"),
        ("10.0.2.21:30001@1", "10.0.2.21:30001", None, "1"),
        ("http://[fd00:1::22]:30001@3", "[fd00:1::22]:30001", "http://[fd00:1::22]:30001/metrics", "3"),
        ("[FD00:1:0::22]:30001", "[fd00:1::22]:30001", None, None),
        ("fd00:1::22:30001", "[fd00:1::22]:30001", None, None),
        ("fd00:1::22", "[fd00:1::22]:30000", None, None),
        ("http://[::ffff:10.0.2.21]:30001", "10.0.2.21:30001", None, None),
        ("localhost:30001", "127.0.0.1:30001", "http://localhost:30001/metrics", None),
        ("node-7", "node-7:30000", None, None),
        ("http://node-7", "node-7:80", None, None),
        ("https://node-7", "node-7:443", "https://node-7:443/metrics", None),
        ("https://gw.example.net/workers/a/", "gw.example.net:443/workers/a", None, None),
        ("http://10.0.2.21:30001/metrics", "10.0.2.21:30001", "http://10.0.2.21:30001/metrics", None),
        ("http://10.0.2.21:30001/v1", "10.0.2.21:30001", "http://10.0.2.21:30001/metrics", None),
        ("http://ops:pw@10.0.2.21:30001@2", "10.0.2.21:30001", "http://10.0.2.21:30001/metrics", "2"),
        ("http://münchen.example:30001", "xn--mnchen-3ya.example:30001", None, None),
    ],
)
def test_addresses(text: str, key: str, metrics_url: str | None, rank: str | None) -> None:
    address = Address.parse(text)
    assert (address.key, address.rank) == (key, rank)
    if metrics_url is not None:
        assert address.metrics_url == metrics_url
    assert Address.parse(address.base_url).key == key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("http://", "host is missing"),
        (":30001", "host is missing"),
        ("10.0.2.21:", "port"),
        ("10.0.2.21:0", "1 to 65535"),
        ("10.0.2.21:65536", "1 to 65535"),
        ("10.0.2.21:30001x", "port"),
        ("10.0.2.21:٣٠٠", "port"),
        ("10.0.2.256:30001", "not an IPv4"),
        ("10.0.2:30001", "not an IPv4"),
        ("010.0.2.21:30001", "not an IPv4"),
        ("host:1:2", "too many ':'"),
        ("[fd00:1::22:30001", "]"),
        ("[fd00:1::22]30001", "only :port"),
        ("[node-7]:30001", "no IPv6"),
        ("10.0.2.21 :30001", "space"),
        ("10.0.2.21:30001\r\nX-Evil: 1", "control character"),
        ("http:\\\\10.0.2.21", "backslash"),
        ("http:/10.0.2.21:30001", "http://host:port"),
        ("//10.0.2.21:30001", "host is missing"),
        ("ftp://10.0.2.21:21", "ftp://"),
        ("http://10.0.2.21:30001?x=1", "without '?'"),
        ("http://10.0.2.21:30001@x", "rank number"),
        ("http://10.0.2.21:30001@-1", "rank number"),
        ("http://a@b@host:1", "%40"),
        ("http://-node:1", "no host name"),
        ("node_7..x:1", "no host name"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(AddressError) as refused:
        Address.parse(text)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.0.0.0:30001", "listen on"),
        ("fd00:1::22:8998", "[fd00:1::22]:8998"),
        ("http://10.0.2.21:30001/metrics", "/metrics"),
    ],
)
def test_what_is_read_with_a_warning(text: str, words: str) -> None:
    assert words in Address.parse(text).warning


def test_a_password_is_sent_and_never_shown() -> None:
    address = Address.parse("http://ops:p%40ss@10.0.2.21:30001/base")
    assert address.credentials == ("ops", "p@ss")
    assert address.authorization == "Basic b3BzOnBAc3M="
    for text in (repr(address), str(address), address.key, address.shown_as, address.base_url):
        assert "p@ss" not in text
        assert "ops" not in text


@pytest.mark.parametrize(
    "text", ["http://ops:s3cret@", "http://ops:s3cret@h:x", "http://ops:s3/cret@h:1@x", "ops:s3cret@h:1@0?"]
)
def test_an_error_never_shows_the_password(text: str) -> None:
    with pytest.raises(AddressError) as refused:
        Address.parse(text)
    assert "s3" not in str(refused.value)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("localhost:30001", "http://127.0.0.1:30001@1", True),
        ("0.0.0.0:30001", "127.0.0.1:30001", True),
        ("HTTP://NODE:30001/", "node:30001", True),
        ("http://node", "node:80", True),
        ("node:30001", "node:30002", False),
        ("http://gw/a", "http://gw/b", False),
    ],
)
def test_the_same_node(one: str, other: str, same: bool) -> None:
    assert Address.parse(one).same_node_as(Address.parse(other)) is same


def test_grpc_workers_have_no_known_metrics_page() -> None:
    address = Address.parse("grpc://10.0.2.21:50051")
    assert (address.key, address.metrics_url, address.speaks_http) == ("10.0.2.21:50051", None, False)


@pytest.mark.parametrize(
    ("address", "header"),
    [
        ("http://node:80", "node"),
        ("https://node", "node"),
        ("https://node:80", "node:80"),
        ("http://[fd00::1]:80", "[fd00::1]"),
        ("http://[fd00::1]:81", "[fd00::1]:81"),
    ],
)
def test_the_host_header(address: str, header: str) -> None:
    assert Address.parse(address).host_header == header


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = Address.parse(text)
    except AddressError:
        return
    assert 1 <= address.port <= 65535
    assert Address.parse(address.base_url).key == address.key


@pytest.mark.parametrize(
    ("base", "url", "warned"),
    [
        ("https://llm.example.net/api", "https://llm.example.net/api/v1/chat/completions", False),
        ("https://llm.example.net/api/", "https://llm.example.net/api/v1/chat/completions", False),
        ("https://llm.example.net/api/v1", "https://llm.example.net/api/v1/chat/completions", True),
        ("https://llm.example.net/api/v1/", "https://llm.example.net/api/v1/chat/completions", True),
        ("https://x.net/v1/chat/completions", "https://x.net/v1/chat/completions", True),
        ("http://10.0.0.10:30000", "http://10.0.0.10:30000/v1/chat/completions", False),
        ("http://[fd00::1]:30000", "http://[fd00::1]:30000/v1/chat/completions", False),
        ("https://x.net/v1beta", "https://x.net/v1beta/v1/chat/completions", False),
        ("https://me:pw@x.net/api", "https://x.net/api/v1/chat/completions", True),
    ],
)
def test_chat_url(base: str, url: str, warned: bool) -> None:
    chat = chat_url(base)
    assert chat.url == url
    assert bool(chat.warning) is warned
    assert "pw" not in chat.warning


@pytest.mark.parametrize("base", ["", "llm.example.net/api", "ftp://x/api", "http://", "https://x/api?y=1"])
def test_no_base_for_chat(base: str) -> None:
    with pytest.raises(AddressError):
        chat_url(base)
