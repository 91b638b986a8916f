"""A hostile cluster: the watch goes on, says what is wrong, leaks nothing, and healthy rows stay fresh."""

from __future__ import annotations

import asyncio
import json
import re
import threading

import pytest

from pdtop.cluster.export import dumps, to_csv
from pdtop.cluster.model import Snapshot, State
from pdtop.cluster.targets import PollSettings
from pdtop.metrics.exposition import Page, PageReader
from tests.cluster.stub_server import Answering, Reply, Request, always, by_path
from tests.end_to_end import hostile
from tests.end_to_end.test_peers_mistakes import after, printed, shown
from tests.end_to_end.watched import Watched, steady, watch, watch_router, watching, with_key, worker

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")
KEY = "s3cret-bearer-key"


def check_outputs(snapshot: Snapshot) -> str:
    """Everything that is printed is harmless, within bounds and without secrets; the table's text."""
    data = json.loads(dumps(snapshot), parse_constant=pytest.fail)
    assert len(data["workers"]) == len(snapshot.workers)
    table = printed(snapshot, 80)
    assert max(map(len, table.splitlines())) <= 80
    for text in (dumps(snapshot), to_csv(snapshot), table):
        assert hostile.SECRET not in text
        assert KEY not in text
        assert len(text) < 1_000_000
    assert CONTROL.search(table) is None
    assert CONTROL.search(dumps(snapshot)) is None
    return table


def odd(text: str) -> Answering:
    """Hostile texts and numbers on every page; the sizes of ``/v1/loads`` are those a float can count."""
    return hostile.worker({"/v1/loads": Reply(404)}, text)


TEXTS = {
    "everything": hostile.NASTY,
    "endless": hostile.LONG,
    "markup": "[/",
    "turned": "\u202e" * 50,
    "none": "",
    "wide": "日本" * 500,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_texts_from_a_worker_stay_texts(text: str) -> None:
    answers = [odd(text), hostile.worker({"/metrics": Reply(body=hostile.nasty_page(text))}, text)]

    def watched() -> Snapshot:
        return watch(lambda watched: after(7.0, watched), [worker(steady())], answers, settings=with_key(KEY))

    snapshot = await asyncio.to_thread(watched)
    assert snapshot.workers[0].state is State.OK
    check_outputs(snapshot)
    for size in ((80, 24), (120, 40)):
        screen = await shown(snapshot, size)
        assert CONTROL.search(screen) is None
        assert hostile.SECRET not in screen
        assert max(map(len, screen.splitlines())) <= size[0]
        assert all(w.name in screen for w in snapshot.workers)


def test_numbers_that_no_machine_has_are_unknown() -> None:
    snapshot = watch(
        lambda watched: after(9.0, watched), [worker(steady())], [odd("m"), odd("m"), worker(steady())]
    )
    check_outputs(snapshot)
    one = snapshot.workers[1]
    assert (one.kv_use, one.tokens_per_s) == (0.5, None) or one.kv_use is None
    assert snapshot.decode.tokens_per_s == pytest.approx(100.0, rel=0.05)  # of the one that is well
    assert one.ttft is None or one.ttft.quantile(0.5) is None


@pytest.mark.parametrize(
    ("metrics", "state", "words"),
    [
        (Reply(endless=b"sglang:num_running_reqs 1\n" * 4000), State.PARTIAL, "larger than 1 MiB"),
        (Reply(endless=b"x" * 65536, chunked=True), State.NOT_METRICS, "none of the engine's"),
        (
            Reply(body=hostile.GZIP_BOMB, headers={"Content-Encoding": "gzip"}),
            State.PARTIAL,
            "1 MiB unpacked",
        ),
        (Reply(body=b"y" * 1000, drip=(1000, 999.0)), State.TIMEOUT, "within 2 s"),
        (Reply(302, {"Location": "/metrics"}), State.REDIRECT, "circle"),
        (Reply(500, body=hostile.HTML), State.HTTP_ERROR, "500"),
        (Reply(raw=b"\x00\xff" * 5000), State.HTTP_ERROR, "not HTTP"),
        (Reply(raw=b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000), State.HTTP_ERROR, "does not end"),
        (Reply(body=hostile.HTML), State.NOT_METRICS, "web page"),
    ],
)
def test_a_hostile_body_is_named_and_delays_nobody(metrics: Reply, state: State, words: str) -> None:
    snapshot = watch(
        lambda watched: after(9.0, watched),
        [worker(steady())],
        [worker(metrics), worker(steady())],
        settings=PollSettings(max_body_bytes=2**20),
    )
    bad = snapshot.workers[1]
    assert (bad.state, words in bad.reason) == (state, True), bad.reason
    for well in (snapshot.workers[0], snapshot.workers[2]):
        assert well.state is State.OK
        assert well.age_s is not None
        assert well.age_s <= 2.1
    assert any(finding.worker == bad.key for finding in snapshot.findings)
    check_outputs(snapshot)


async def test_the_loop_goes_on_while_a_huge_page_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    read = PageReader.read

    def held_up(self: PageReader, body: bytes, *, truncated: bool = False) -> Page:
        begun.set()
        assert go_on.wait(20.0), "the loop waits for the page"
        return read(self, body, truncated=truncated)

    async def act(watched: Watched) -> Snapshot:
        assert await asyncio.to_thread(begun.wait, 20.0)
        snapshot = watched.snapshot()
        go_on.set()
        return snapshot

    monkeypatch.setattr(PageReader, "read", held_up)
    huge = Reply(body=b'sglang:num_running_reqs{a="b"} 1\n' * 20_000)
    snapshot = await watching(act, [], [worker(huge)])
    assert snapshot.workers[0].state is None  # asked, and not read yet


def test_a_key_does_not_follow_a_redirect_to_another_origin() -> None:
    async def act(watched: Watched) -> tuple[list[Request], list[Request]]:
        watched_server, thief = watched.decode
        thief.requests.clear()
        away[0] = thief.url
        await after(9.0, watched)
        elsewhere = [request for request in thief.requests if request.route == "/stolen"]
        return elsewhere, watched_server.requests

    away = [""]
    lures = lambda request: Reply(302, {"Location": f"{away[0]}/stolen"})  # noqa: E731
    elsewhere, own = watch(act, decode=[lures, worker(steady())], settings=with_key(KEY))
    assert elsewhere == []
    assert {request.headers["authorization"] for request in own} == {f"Bearer {KEY}"}


def test_a_routers_list_of_anything() -> None:
    body = hostile.odd_workers(["http://127.0.0.1:5", "http://127.0.0.1:5/", "127.0.0.1:6"])
    router = by_path(
        {
            "/workers": Reply(body=body),
            "/metrics": Reply(body=hostile.nasty_page().replace(b"sglang:", b"smg_")),
            "/readiness": Reply(503, body=json.dumps({"reason": hostile.NASTY}).encode()),
            "/get_loads": Reply(body=hostile.odd_loads()),
        }
    )
    snapshot = watch_router(lambda watched: after(9.0, watched), router)
    check_outputs(snapshot)
    assert [w.key for w in snapshot.workers].count("127.0.0.1:5") == 1
    assert len(snapshot.notices) == len(set(snapshot.notices))


def test_a_list_of_a_hundred_thousand() -> None:
    async def once_listed(watched: Watched) -> Snapshot:
        """On a busy machine the list may take more than one reading: 8 MB against the time limit."""
        for _ in range(1000):
            if (snapshot := watched.snapshot()).workers:
                return snapshot
            await asyncio.sleep(0.05)
        pytest.fail("the list was never read")

    urls = [f"http://127.0.{n // 250 % 250}.{n % 250 + 1}:{n % 60000 + 1}" for n in range(100_000)]
    body = json.dumps({"workers": [{"id": str(n), "url": url} for n, url in enumerate(urls)]}).encode()
    snapshot = watch_router(once_listed, by_path({"/workers": Reply(body=body)}))
    assert len(snapshot.workers) == 1024
    assert "the first 1024 are watched" in snapshot.routers[0].reason


@pytest.mark.parametrize("body", [hostile.HTML, b"", b"[]", b'{"workers": 5}', b'{"workers"', b"[" * 100_000])
def test_a_router_that_answers_something_else(body: bytes) -> None:
    snapshot = watch_router(lambda watched: after(5.0, watched), always(Reply(body=body)))
    router = snapshot.routers[0]
    assert router.state is State.HTTP_ERROR
    assert router.reason == "200, but no worker list"
    assert [finding.router for finding in snapshot.findings] != []
    check_outputs(snapshot)
