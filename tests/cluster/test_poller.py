"""The poller against stub workers: its paces, what it stops asking, who comes and goes; in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pdtop.cluster.model import Role, State
from pdtop.cluster.poller import Poller
from pdtop.cluster.readings import (
    HealthReading,
    InfoReading,
    LoadsReading,
    MetricsReading,
    RouterMetricsReading,
    RouterReading,
)
from pdtop.cluster.targets import Targets, WorkerTarget, from_config, from_lists, from_router
from pdtop.config.schema import Config
from tests.cluster.stub_server import Reply, Request, StubServer, by_path
from tests.cluster.virtual_time import run

PAGE = b'sglang:num_running_reqs{tp_rank="0"} 5.0\nsglang:num_retracted_reqs{pid="%d"} 0.0\n'
LOADS = b'{"timestamp": 1.0, "loads": [{"dp_rank": 0, "num_running_reqs": 5, "num_waiting_reqs": 0}]}'
INFO: dict[str, Any] = {"version": "0.5.23", "model_path": "m", "startup_time": {"e2e": 1.25}, "port": 1}


def worker(pid: int = 1, **others: Reply) -> dict[str, Reply]:
    """A worker of today: everything answers at once."""
    replies = {
        "/metrics": Reply(body=PAGE % pid),
        "/v1/loads": Reply(body=LOADS),
        "/ready": Reply(),
        "/server_info": Reply(body=json.dumps({**INFO, "port": pid}).encode()),
    }
    return replies | {f"/{name}": reply for name, reply in others.items()}


@dataclass
class Record:
    """A sink that keeps everything, with the time it came at."""

    came: list[tuple[float, str, str, Any]] = field(default_factory=list)
    workers: list[tuple[str, ...]] = field(default_factory=list)
    notices: tuple[str, ...] = ()
    targets: tuple[WorkerTarget, ...] = ()

    def _keep(self, kind: str, key: str, reading: object) -> None:
        self.came.append((asyncio.get_running_loop().time() - 1000.0, kind, key, reading))

    def metrics(self, key: str, reading: MetricsReading) -> None:
        self._keep("metrics", key, reading)

    def loads(self, key: str, reading: LoadsReading) -> None:
        self._keep("loads", key, reading)

    def health(self, key: str, reading: HealthReading) -> None:
        self._keep("health", key, reading)

    def info(self, key: str, reading: InfoReading) -> None:
        self._keep("info", key, reading)

    def router(self, name: str, reading: RouterReading) -> None:
        self._keep("router", name, reading)

    def router_metrics(self, name: str, reading: RouterMetricsReading) -> None:
        self._keep("router_metrics", name, reading)

    def workers_changed(self, workers: tuple[WorkerTarget, ...], notices: tuple[str, ...]) -> None:
        self.workers.append(tuple(target.key for target in workers))
        self.targets, self.notices = workers, notices

    def times(self, kind: str, key: str | None = None) -> list[float]:
        return [at for at, what, who, _ in self.came if what == kind and key in (None, who)]

    def last(self, kind: str, key: str | None = None) -> Any:
        return [reading for _, what, who, reading in self.came if what == kind and key in (None, who)][-1]


Act = Callable[[Poller, list[StubServer]], Awaitable[None]]
Answers = Mapping[str, Reply] | Callable[[Request], Reply]


def watch(
    *answers: Answers,
    seconds: float = 20.0,
    act: Act | None = None,
    make: Callable[[list[StubServer]], Targets] | None = None,
) -> tuple[Record, list[StubServer]]:
    """Poll stub workers (all of them decode workers unless ``make`` says otherwise) for a while."""

    async def main() -> tuple[Record, list[StubServer]]:
        record = Record()
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(StubServer(one if callable(one) else by_path(one)))
                for one in answers
            ]
            targets = make(servers) if make else from_lists([], [s.url for s in servers], environ={})
            poller = Poller(targets, record, seed=7)
            task = asyncio.create_task(poller.run())
            if act is not None:
                await act(poller, servers)
            else:
                await asyncio.sleep(seconds)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return record, servers

    return run(main())


def asked(server: StubServer) -> Counter[str]:
    return Counter(request.path for request in server.requests)


def key(server: StubServer) -> str:
    return f"127.0.0.1:{server.port}"


def test_each_endpoint_has_its_own_pace() -> None:
    record, (server,) = watch(worker(), seconds=19.9)
    assert asked(server) == {"/metrics": 10, "/v1/loads": 20, "/ready": 4, "/server_info": 1}
    assert record.workers == [(key(server),)]
    assert {reading.state for _, _, _, reading in record.came} == {State.OK}
    assert record.last("metrics").numbers.gauge("running") == 5.0
    assert record.last("info").identity.version == "0.5.23"
    assert server.connections <= 4
    assert server.open_max == 1


def test_an_old_worker_is_not_asked_again_for_what_it_lacks() -> None:
    old = {
        "/metrics": Reply(body=PAGE % 1),
        "/health": Reply(delay_s=1.2),
        "/get_server_info": Reply(body=b"{}"),
    }
    record, (server,) = watch(old, seconds=19.9)
    counts = asked(server)
    assert (counts["/v1/loads"], counts["/get_load"], counts["/ready"]) == (1, 1, 1)
    assert counts["/health"] == 4
    assert (counts["/server_info"], counts["/get_server_info"]) == (1, 1)
    assert record.last("health").ready is True
    assert [reading.supported for *_, reading in record.came if isinstance(reading, LoadsReading)] == [False]


def test_the_forerunner_of_loads_is_asked_at_the_pace_of_the_metrics() -> None:
    replies = worker() | {"/get_load": Reply(body=b'[{"dp_rank":0,"num_reqs":3,"num_waiting_reqs":1}]')}
    del replies["/v1/loads"]
    record, (server,) = watch(replies, seconds=9.9)
    assert asked(server)["/v1/loads"] == 1
    assert asked(server)["/get_load"] == 5
    assert record.last("loads").loads.ranks[0].running == 2.0


def test_health_may_take_its_time() -> None:
    replies = worker(health=Reply(503, delay_s=15.0))
    del replies["/ready"]
    record, (server,) = watch(replies, seconds=39.0)
    reading = record.last("health")
    assert (reading.endpoint, reading.ready, reading.state) == ("/health", False, State.HTTP_ERROR)
    assert record.times("health") == pytest.approx([15.0, 30.0], abs=0.1)
    assert asked(server)["/metrics"] == 20


@pytest.mark.parametrize(
    "bad",
    [
        Reply(hang=True),
        Reply(body=b"x" * 100, drip=(100, 99.0)),
        Reply(endless=b"y" * 65536, chunked=True),
        Reply(status=500),
        Reply(raw=b"garbage\r\n\r\n"),
        Reply(302, {"location": "/metrics"}),
    ],
)
def test_one_bad_worker_never_delays_another(bad: Reply) -> None:
    def make(servers: list[StubServer]) -> Targets:
        targets = from_lists([], [s.url for s in servers], environ={})
        return replace(targets, settings=replace(targets.settings, max_body_bytes=500_000))

    record, servers = watch(lambda _: bad, worker(2), worker(3), seconds=19.9, make=make)
    for server in servers[1:]:
        times = record.times("metrics", key(server))
        assert len(times) == 10
        assert max(b - a for a, b in pairwise(times)) == pytest.approx(2.0, abs=0.05)
    assert record.last("metrics", key(servers[0])).state not in (State.OK, None)
    assert servers[0].open_max == 1


def test_a_huge_page_is_read_and_delays_nobody() -> None:
    lines = (b'sglang:num_running_reqs{dp_rank="%d"} 1.0\n' % rank for rank in range(20_000))
    record, servers = watch(worker(1, metrics=Reply(body=b"".join(lines))), worker(2), seconds=9.9)
    assert record.last("metrics", key(servers[0])).numbers.gauge("running") == 20_000.0
    assert len(record.times("metrics", key(servers[1]))) == 5


def test_a_dead_worker_is_asked_less_and_less() -> None:
    record, _ = watch(seconds=60.0, make=lambda _: from_lists([], ["127.0.0.1:1"], environ={}))
    times = record.times("metrics", "127.0.0.1:1")
    assert record.last("metrics", "127.0.0.1:1").state is State.REFUSED
    assert times == pytest.approx([0, 2, 4, 6, 10, 18, 28, 38, 48, 58], abs=0.2)


def test_after_an_absence_everything_is_asked_anew() -> None:
    up = True

    def answering(request: Request) -> Reply:
        if not up:
            return Reply(raw=b"")  # as good as refused
        return by_path(worker(2 if len(seen) else 1))(request)

    seen: list[int] = []

    async def act(poller: Poller, servers: list[StubServer]) -> None:
        nonlocal up
        await asyncio.sleep(5.0)
        up = False
        await asyncio.sleep(3.0)
        up = True
        seen.append(1)
        await asyncio.sleep(8.0)

    record, (server,) = watch(answering, act=act)
    assert asked(server)["/server_info"] == 2
    assert len(record.times("info")) == 2


def test_other_process_ids_mean_a_restart() -> None:
    pages = iter([PAGE % 1, PAGE % 1, PAGE % 2, PAGE % 2])

    def answering(request: Request) -> Reply:
        if request.route == "/metrics":
            return Reply(body=next(pages))
        return Reply(body=b'{"version": "0.5.23"}') if request.route == "/server_info" else Reply(404)

    record, (server,) = watch(answering, seconds=7.0)
    assert asked(server)["/server_info"] == 2
    assert asked(server)["/v1/loads"] == 2
    assert record.times("info") == pytest.approx([0.0, 4.0], abs=0.1)


def test_somebody_else_may_see_a_restart() -> None:
    async def act(poller: Poller, servers: list[StubServer]) -> None:
        await asyncio.sleep(10.0)
        poller.restarted(key(servers[0]))
        poller.restarted("nobody:1")
        await asyncio.sleep(3.0)

    _, (server,) = watch(worker(), act=act)
    assert asked(server)["/server_info"] == 2


def test_identity_that_cannot_be_had_is_asked_again_later() -> None:
    record, (server,) = watch(worker(server_info=Reply(hang=True)), seconds=79.0)
    assert record.last("info").state is State.TIMEOUT
    assert asked(server)["/server_info"] == 3  # every 30 s
    assert asked(server)["/metrics"] == 40


def test_a_key_that_is_refused_is_not_hammered() -> None:
    replies = worker() | {"/v1/loads": Reply(401), "/server_info": Reply(401)}
    record, (server,) = watch(replies, seconds=60.0)
    assert record.last("loads").state is State.AUTH
    assert asked(server)["/v1/loads"] < 15
    assert asked(server)["/server_info"] == 2


def test_the_interval_can_be_changed() -> None:
    async def act(poller: Poller, servers: list[StubServer]) -> None:
        await asyncio.sleep(3.0)  # at 0 and 2
        poller.set_interval(10.0)
        await asyncio.sleep(18.0)  # at 12
        poller.set_interval(0.5)
        await asyncio.sleep(2.0)
        assert poller.interval_s == 0.5

    record, _ = watch(worker(), act=act)
    times = record.times("metrics")
    assert times[:3] == pytest.approx([0.0, 2.0, 12.0], abs=0.05)
    assert times[3] == pytest.approx(21.0, abs=0.05)
    assert len(times) in (7, 8)


def test_a_new_config_is_applied_while_it_runs() -> None:
    async def act(poller: Poller, servers: list[StubServer]) -> None:
        await asyncio.sleep(4.5)
        first, second = poller.targets.workers
        other = from_lists([servers[2].url], [], environ={}).workers[0]
        changed = (replace(first, weight=0.5), other)
        poller.apply(replace(poller.targets, workers=changed))
        await asyncio.sleep(4.0)
        assert second not in changed

    record, servers = watch(
        worker(1),
        worker(2),
        worker(3),
        act=act,
        make=lambda s: from_lists([], [s[0].url, s[1].url], environ={}),
    )
    assert record.workers == [
        (key(servers[0]), key(servers[1])),
        (key(servers[0]), key(servers[2])),
    ]
    assert record.targets[0].weight == 0.5
    assert len(record.times("metrics", key(servers[0]))) == 5  # undisturbed
    assert asked(servers[0])["/server_info"] == 1
    assert max(record.times("metrics", key(servers[1]))) < 4.5
    assert min(record.times("metrics", key(servers[2]))) == pytest.approx(4.5, abs=0.1)


def test_a_worker_s_own_key_is_sent_to_it_alone_and_a_new_one_is_used_at_once() -> None:
    def with_keys(variable: str, servers: list[StubServer]) -> Targets:
        first, second = (key(server) for server in servers)
        raw = {"decode": {"workers": [first, second], "worker": {first: {"api_key_env": variable}}}}
        environ = {"PDTOP_API_KEY": "common", "OLD": "old", "NEW": "new"}
        return from_config(Config.model_validate(raw), cluster="c", folder=Path(), environ=environ)

    async def act(poller: Poller, servers: list[StubServer]) -> None:
        for variable in ("NEW", "UNSET"):
            await asyncio.sleep(3.0)
            poller.apply(with_keys(variable, servers))
        await asyncio.sleep(3.0)

    refused = {path: Reply(401) for path in ("/metrics", "/v1/loads", "/ready", "/server_info")}
    record, servers = watch(refused, worker(), act=act, make=lambda s: with_keys("OLD", s))
    sent = [request.headers.get("authorization") for request in servers[0].requests]
    assert list(dict.fromkeys(sent)) == ["Bearer old", "Bearer new", None]
    assert {request.headers.get("authorization") for request in servers[1].requests} == {"Bearer common"}
    assert len(record.times("metrics", key(servers[1]))) == 5  # undisturbed
    assert "UNSET" in record.last("metrics", key(servers[0])).fix


def test_other_settings_start_all_anew() -> None:
    async def act(poller: Poller, servers: list[StubServer]) -> None:
        await asyncio.sleep(1.0)
        settings = replace(poller.targets.settings, timeout_s=0.5)
        poller.apply(replace(poller.targets, settings=settings))
        await asyncio.sleep(1.8)

    record, (server,) = watch(worker(metrics=Reply(hang=True)), act=act)
    assert record.times("metrics") == pytest.approx([1.5], abs=0.05)
    assert "0.5 s" in record.last("metrics").reason
    assert asked(server)["/server_info"] == 2


def listing(*urls: str, health: bool = True) -> bytes:
    entries = [
        {
            "id": f"id-{n}",
            "url": url,
            "worker_type": "decode",
            "is_healthy": health,
            "load": 0,
            "metadata": {},
        }
        for n, url in enumerate(urls)
    ]
    return json.dumps({"workers": entries}).encode()


def test_workers_join_and_leave_with_the_router_s_list() -> None:
    urls: list[list[str]] = []

    def routing(request: Request) -> Reply:
        if request.route != "/workers":
            return Reply(404)
        return Reply(body=listing(*(urls.pop(0) if len(urls) > 1 else urls[0])))

    async def act(poller: Poller, servers: list[StubServer]) -> None:
        one, two = servers[1].url, servers[2].url
        urls.extend([[one], [one, two], [], [one, two], [one], [one], [one]])
        await asyncio.sleep(13.5)

    record, servers = watch(
        routing, worker(1), worker(2), act=act, make=lambda s: from_router(s[0].url, environ={})
    )
    one, two = key(servers[1]), key(servers[2])
    # The empty list of a moment ends nothing; what is missing twice in a row is gone.
    assert record.workers == [(), (one,), (one, two), (one,)]
    assert len(record.times("metrics", one)) == 7
    assert record.times("metrics", two)[0] == pytest.approx(2.0, abs=0.1)
    assert record.times("metrics", two)[-1] < 10.1
    assert asked(servers[1])["/server_info"] == 1


def test_a_list_that_cannot_be_read_ends_nothing() -> None:
    count = iter(range(100))

    def routing(request: Request) -> Reply:
        if request.route != "/workers":
            return Reply(404)
        return Reply(body=listing(workers[0].url)) if next(count) == 0 else Reply(500)

    workers: list[StubServer] = []

    async def act(poller: Poller, servers: list[StubServer]) -> None:
        workers.append(servers[1])
        await asyncio.sleep(9.0)

    record, servers = watch(routing, worker(1), act=act, make=lambda s: from_router(s[0].url, environ={}))
    assert record.workers == [(), (key(servers[1]),)]
    assert record.last("router").state is State.HTTP_ERROR
    assert len(record.times("metrics", key(servers[1]))) == 5


def test_one_worker_under_two_names_is_found_by_who_it_says_it_is() -> None:
    same = json.dumps(INFO).encode()

    def make(servers: list[StubServer]) -> Targets:
        return from_lists([], [servers[0].url, servers[1].url], environ={})

    replies = worker(1) | {"/server_info": Reply(body=same)}
    record, servers = watch(replies, replies, seconds=9.0, make=make)
    assert record.workers == [(key(servers[0]), key(servers[1])), (key(servers[0]),)]
    assert record.targets[0].aliases == (key(servers[1]),)
    assert any("twice" in notice for notice in record.notices)
    assert len(record.times("metrics", key(servers[0]))) == 5
    assert len(record.times("metrics", key(servers[1]))) == 1


def test_a_grpc_worker_is_not_dialled() -> None:
    record, (server,) = watch(
        worker(), seconds=5.0, make=lambda s: from_lists([], [f"grpc://127.0.0.1:{s[0].port}"], environ={})
    )
    assert server.connections == 0
    reading = record.last("metrics")
    assert reading.state is State.METRICS_DISABLED
    assert "gRPC" in reading.reason
    assert len(record.came) == 1


def test_metrics_may_be_at_another_address() -> None:
    def make(servers: list[StubServer]) -> Targets:
        targets = from_lists([], [servers[0].url], environ={})
        other = from_lists([], [servers[1].url], environ={}).workers[0].address
        return replace(targets, workers=(replace(targets.workers[0], metrics=other),))

    _, servers = watch(worker(1), worker(2), seconds=3.0, make=make)
    assert asked(servers[0])["/metrics"] == 0
    assert asked(servers[0])["/v1/loads"] == 3
    assert asked(servers[1]) == {"/metrics": 2}


def test_first_requests_are_spread_the_same_way_for_the_same_seed() -> None:
    starts = []
    for _ in range(2):
        record, servers = watch(*(worker(n) for n in range(1, 41)), seconds=0.5)
        starts.append([min(record.times("metrics", key(server))) for server in servers])
    assert starts[0] == pytest.approx(starts[1], abs=0.02)
    assert max(starts[0]) <= 0.2
    assert len({round(at, 2) for at in starts[0]}) == 3  # steps of a sixteenth of a second


def test_roles_come_with_the_targets() -> None:
    record, _ = watch(worker(), seconds=1.0, make=lambda s: from_lists([s[0].url], [], environ={}))
    assert record.targets[0].role is Role.PREFILL
