"""One router: which kind it is, where its metrics are, and with how few requests that is found out."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pdtop.cluster.address import Address
from pdtop.cluster.discovery import RouterClient
from pdtop.cluster.http import BearerKey, Dialler
from pdtop.cluster.model import State
from pdtop.cluster.readings import RouterMetricsReading, RouterReading
from pdtop.cluster.targets import PollSettings, RouterTarget
from tests.cluster.stub_server import Reply, Request, StubServer, by_path
from tests.cluster.virtual_time import Place, run

ROUTER = Path(__file__).parent.parent / "fixtures" / "router"
R32, SMG = "sglang-router-0.3.2", "smg-1.13.0"


def captured(router: str, **others: Reply) -> dict[str, Reply]:
    """The GETs of a real router as they were captured, with the fixtures in place of what was left out."""
    replies: dict[str, Reply] = {}
    for exchange in json.loads((ROUTER / f"{router}-http-get.json").read_text()):
        request, response = exchange["request"], exchange["response"]
        if request["method"] == "GET" and "?" not in request["path"] and request["path"] != "/metrics":
            body = response["body"]
            raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            replies.setdefault(request["path"], Reply(response["status"], body=raw))
    for path, name in (("/workers", "workers"), ("/get_loads", "get-loads")):
        replies[path] = Reply(body=(ROUTER / f"{router}-{name}.json").read_bytes())
    return replies | {f"/{name}": reply for name, reply in others.items()}


def page(router: str) -> Reply:
    return Reply(body=(ROUTER / f"{router}-pd.metrics.txt").read_bytes())


Readings = list[tuple[RouterReading, RouterMetricsReading]]
Answers = Mapping[str, Reply] | Callable[[Request], Reply]


class Seen:
    """What came out, and what the servers and the network saw."""

    def __init__(self) -> None:
        self.readings: Readings = []
        self.servers: list[StubServer] = []
        self.dialled: list[Place] = []
        self.urls: list[str | None] = []

    def asked(self, server: int = 0) -> Counter[str]:
        return Counter(request.path for request in self.servers[server].requests)

    @property
    def last(self) -> RouterReading:
        return self.readings[-1][0]

    @property
    def page(self) -> RouterMetricsReading:
        return self.readings[-1][1]


def rounds(
    *answers: Answers,
    count: int = 1,
    engine: str | None = None,
    metrics: bool = False,
    guess: bool = True,
    settings: PollSettings | None = None,
) -> Seen:
    """Ask the first server for ``count`` rounds of 2 s. The second one is at the usual metrics port."""
    seen = Seen()
    places: dict[Place, Place] = {}

    def dial(host: str, port: int) -> Place:
        seen.dialled.append((host, port))
        if (host, port) not in places:
            raise ConnectionRefusedError(111, "Connection refused")
        return places[host, port]

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for one in answers:
                answering = one if callable(one) else by_path(one)
                seen.servers.append(await stack.enter_async_context(StubServer(answering)))
            places[("router", 30000)] = ("127.0.0.1", seen.servers[0].port)
            if guess and len(seen.servers) > 1:
                places[("router", 29000)] = ("127.0.0.1", seen.servers[1].port)
            places[("router", 9999)] = ("127.0.0.1", seen.servers[-1].port)
            target = RouterTarget(
                "R",
                Address.parse("http://router:30000"),
                Address.parse("http://router:9999") if metrics else None,
                engine,
            )
            async with Dialler() as dialler:
                client = RouterClient(target, dialler, settings or PollSettings())
                for _ in range(count):
                    reading = await client.read()
                    seen.readings.append((reading, await client.read_metrics()))
                    seen.urls.append(client.metrics_url)
                    await asyncio.sleep(2.0)

    run(main(), dial=dial)
    return seen


@pytest.mark.parametrize(
    ("router", "engine", "version"), [(R32, "sglang-router", None), (SMG, "smg", "1.13.0")]
)
def test_real_routers(router: str, engine: str, version: str | None) -> None:
    seen = rounds(captured(router), {"/metrics": page(router)}, count=3)
    reading = seen.last
    assert (reading.state, reading.engine, reading.version) == (State.OK, engine, version)
    assert (reading.ready, reading.alive, reading.control) == (True, True, True)
    assert reading.workers is not None
    assert len(reading.workers) == 7
    assert reading.loads is not None
    assert len(reading.loads) == (7 if router == R32 else 6)
    assert seen.page.state is State.OK
    assert seen.page.numbers is not None
    assert seen.page.numbers.family == "smg"
    assert seen.urls == ["http://router:29000/metrics"] * 3
    assert seen.asked() == {"/workers": 3, "/readiness": 3, "/get_loads": 1}


def test_sglang_router_is_rarely_made_to_call_all_its_workers() -> None:
    seen = rounds(captured(R32), {"/metrics": page(R32)}, count=100)
    assert seen.asked()["/get_loads"] == 4  # once a minute
    assert rounds(captured(SMG), {"/metrics": page(SMG)}, count=26).asked()["/get_loads"] == 6


def test_an_empty_router_is_asked_one_thing_more_and_only_once() -> None:
    empty = Reply(body=b'{"workers":[],"total":0,"stats":{}}')
    not_ready = Reply(503, body=b'{"status":"not ready","reason":"insufficient healthy workers"}')
    for router, engine in ((R32, "sglang-router"), (SMG, "smg")):
        seen = rounds(captured(router, workers=empty, readiness=not_ready), count=3)
        assert (seen.last.engine, seen.last.workers, seen.last.state) == (engine, (), State.OK)
        assert (seen.last.ready, seen.last.ready_reason) == (False, "insufficient healthy workers")
        assert seen.last.alive is True  # by /health
        assert seen.asked()["/list_workers"] == 1
        assert seen.last.control is False  # nothing to change yet


def test_a_router_that_gets_its_workers_later_is_looked_at_again_at_once() -> None:
    def answering(request: Request) -> Reply:
        empty = request.at < 1003.0
        replies = captured(R32, metrics=Reply(404) if empty else page(R32))
        if empty:
            replies |= {path: Reply(body=b'{"workers":[]}') for path in ("/workers", "/get_loads")}
        return by_path(replies)(request)

    seen = rounds(answering, count=4)
    assert [len(reading.loads or ()) for reading, _ in seen.readings] == [0, 0, 0, 7]
    assert seen.urls == [None, None, "http://router:30000/metrics", "http://router:30000/metrics"]


def test_an_engine_that_the_config_names_is_not_looked_for() -> None:
    seen = rounds(captured(R32), engine="smg")
    assert seen.last.engine == "smg"
    assert seen.asked()["/list_workers"] == 0
    assert rounds({"/workers": Reply(body=b'{"workers":[]}')}, engine="embedded").last.engine == "pdtop"


def test_loads_alone_name_the_workers() -> None:
    body = b'{"workers":[{"worker":"http://10.0.2.21:30001","load":-1}]}'
    seen = rounds({"/get_loads": Reply(body=body)})
    assert seen.last.workers is not None
    assert [(w.url, w.load) for w in seen.last.workers] == [("http://10.0.2.21:30001", None)]
    assert seen.last.loads == {"http://10.0.2.21:30001": None}
    assert (seen.last.state, seen.last.control) == (State.OK, False)
    assert "no worker list" in seen.last.reason


def test_old_routers() -> None:
    old = {"/list_workers": Reply(body=b'{"urls":["http://10.0.2.21:30001"]}'), "/health": Reply()}
    vllm = (ROUTER / "vllm-router-0.1.17-pd.metrics.txt").read_bytes()
    sgl = b'# TYPE sgl_router_requests_total counter\nsgl_router_requests_total{route="/generate"} 5\n'
    for text, engine in ((vllm, "vllm-router"), (sgl, "sgl-router")):
        seen = rounds(old, {"/metrics": Reply(body=text)}, count=3)
        assert seen.last.engine == engine
        assert seen.last.workers is not None
        assert [worker.url for worker in seen.last.workers] == ["http://10.0.2.21:30001"]
        assert seen.last.control is False


def test_a_page_on_the_main_port_is_found_too() -> None:
    seen = rounds(captured(SMG, metrics=page(SMG)), guess=False)
    assert seen.urls == ["http://router:30000/metrics"]
    assert seen.page.state is State.OK


def test_no_page_anywhere_is_said_and_looked_for_again_after_a_while() -> None:
    seen = rounds(captured(R32), count=17)
    assert seen.page.state is State.METRICS_DISABLED
    assert "router:29000" in seen.page.reason
    assert "metrics_url" in seen.page.fix
    assert seen.asked()["/metrics"] == 2  # at once, and after half a minute
    assert seen.urls[-1] is None


def test_another_router_s_page_at_the_usual_place_is_not_taken() -> None:
    foreign = b'# TYPE smg_worker_health gauge\nsmg_worker_health{worker="http://10.9.9.9:1"} 1\n'
    seen = rounds(captured(R32), {"/metrics": Reply(body=foreign)})
    assert seen.page.state is State.METRICS_DISABLED
    assert "another router" in seen.page.reason


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        (Reply(404), State.METRICS_DISABLED),
        (Reply(body=b"<html>"), State.NOT_METRICS),
        (Reply(body=b""), State.OK),  # an idle sglang-router has nothing to say yet
        (Reply(hang=True), State.TIMEOUT),
        (Reply(401), State.AUTH),
        (Reply(body=b"smg_http_connections_active 3\nnonsense line\n"), State.OK_WITH_WARNINGS),
        (Reply(body=b"smg_http_connections_active 3\nsmg_x", announce=999), State.PARTIAL),
    ],
)
def test_the_page_at_a_given_address(reply: Reply, state: State) -> None:
    seen = rounds(captured(R32), {"/metrics": reply}, metrics=True, guess=False)
    assert seen.page.state is state
    assert ("router", 29000) not in seen.dialled


@pytest.mark.parametrize(
    ("reply", "state", "words"),
    [
        (Reply(401), State.AUTH, "401"),
        (Reply(500), State.HTTP_ERROR, "500"),
        (Reply(body=b"<html>"), State.HTTP_ERROR, "no worker list"),
        (Reply(hang=True), State.TIMEOUT, "2 s"),
        (Reply(302, {"location": "http://login.example.net/"}), State.REDIRECT, "login.example.net"),
    ],
)
def test_a_list_that_cannot_be_had(reply: Reply, state: State, words: str) -> None:
    seen = rounds(captured(R32, workers=reply))
    assert seen.last.state is state
    assert words in seen.last.reason
    assert seen.last.workers is None
    assert seen.last.ready is True


def test_a_router_that_is_gone_and_another_kind_that_comes_back() -> None:
    def answering(request: Request) -> Reply:
        if request.at < 1006.0:
            return by_path(captured(R32))(request)
        return Reply(raw=b"") if request.at < 1010.0 else by_path(captured(SMG))(request)

    seen = rounds(answering, count=6)
    assert [reading.state for reading, _ in seen.readings[3:5]] == [State.REFUSED] * 2
    assert seen.readings[4][0].alive is None
    assert (seen.readings[2][0].engine, seen.last.engine) == ("sglang-router", "smg")


def test_the_admin_key_goes_to_the_list_and_no_key_to_a_guessed_port() -> None:
    settings = PollSettings(key=BearerKey("normal"), admin_key=BearerKey("admin"))
    seen = rounds(captured(R32), {"/metrics": page(R32)}, settings=settings)
    main = {request.route: request.headers.get("authorization") for request in seen.servers[0].requests}
    guessed = {request.route: request.headers.get("authorization") for request in seen.servers[1].requests}
    assert main["/workers"] == "Bearer admin"
    assert guessed == {"/metrics": None}


CONTROL_PLANE = {"WWW-Authenticate": 'Bearer realm="control-plane"'}


@pytest.mark.parametrize(
    ("reply", "admin_key", "fix"),
    [
        (Reply(401), None, "the key in $K is not the one it wants: set the right key"),
        (Reply(401), BearerKey("y"), "the key in $A is not the one it wants: set the right key"),
        (Reply(401, CONTROL_PLANE), None, "it wants the key of an admin: put one into $A"),
        (Reply(403), BearerKey("y"), "it wants the key of an admin: put one into $A"),
    ],
)
def test_a_refused_key_is_named(reply: Reply, admin_key: BearerKey | None, fix: str) -> None:
    settings = PollSettings(key=BearerKey("x"), admin_key=admin_key, key_variable="K", admin_key_variable="A")
    assert rounds(captured(R32, workers=reply), settings=settings).last.fix == fix


@pytest.mark.parametrize(
    "body", [b"\xff", b"[" * 50_000, b'{"workers":[{"url":"http://[x"}]}', b"null", b"7"]
)
def test_hostile_lists(body: bytes) -> None:
    everywhere: dict[str, Any] = dict.fromkeys(
        ("workers", "readiness", "get_loads", "list_workers"), Reply(body=body)
    )
    reading = rounds(captured(R32, **everywhere)).last
    assert reading.state in (State.OK, State.HTTP_ERROR)
