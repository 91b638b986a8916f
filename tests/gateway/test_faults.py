"""Workers that fail, hang, refuse or break off: what the client sees, what the router remembers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

import pdtop.gateway.probing as probing
import pdtop.gateway.proxy as proxy
from pdtop.config.schema import Config
from pdtop.gateway.app import Gateway
from tests.gateway.test_gateway import router, samples
from tests.simulator.support import Answer, client, eventually, post

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ASK = {"text": "x" * 200, "stream": True, "sampling_params": {"max_new_tokens": 4}}


class Fake:
    """A worker that does what a test wants: ``serve`` answers inference, ``ready`` is its probe's status."""

    def __init__(self, serve: Handler) -> None:
        self.serve = serve
        self.ready = 200
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.left = 0  # requests whose client went away

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(json.loads(await request.read()))
        try:
            return await self.serve(request)
        except asyncio.CancelledError:
            self.left += 1
            raise

    async def probe(self, request: web.Request) -> web.Response:
        return web.Response(status=self.ready)


async def fine(request: web.Request) -> web.StreamResponse:
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(request)
    for part in (b'data: {"text": "a"}\n\n', b'data: {"text": "ab"}\n\n', b"data: [DONE]\n\n"):
        await out.write(part)
    return out


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def says(status: int, text: str) -> Handler:
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": text}}, status=status)

    return serve


async def says_so_late(request: web.Request) -> web.StreamResponse:
    """SGLang's way: the head of a stream, then an error as its first event."""
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(request)
    await out.write(b'data: {"error": {"message": "KV transfer failed"}}\n\ndata: [DONE]\n\n')
    return out


async def break_off(request: web.Request) -> web.StreamResponse:
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(request)
    await out.write(b'data: {"text": "a"}\n\n')
    assert request.transport is not None
    request.transport.close()
    return out


async def begin_and_hang(request: web.Request) -> web.StreamResponse:
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(request)
    await out.write(b'data: {"text": "a"}\n\n')
    await asyncio.Event().wait()
    return out


@asynccontextmanager
async def cluster(
    prefill: list[Handler], decode: list[Handler], *, timeout_s: float = 60.0
) -> AsyncIterator[tuple[Gateway, str, list[Fake]]]:
    """Fake workers behind a router that takes them in turn; the first of each pool is asked first."""
    async with AsyncExitStack() as stack:
        fakes = [Fake(serve) for serve in (*prefill, *decode)]
        for fake in fakes:
            app = web.Application()
            app.add_routes([web.post("/{path:.*}", fake.handle), web.get("/ready", fake.probe)])
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        urls = [fake.url for fake in fakes]
        settings = Config.model_validate(
            {
                "server": {"request_timeout_secs": timeout_s},
                "prefill": {"workers": urls[: len(prefill)], "policy": "round_robin"},
                "decode": {"workers": urls[len(prefill) :], "policy": "round_robin"},
                "health": {"interval_secs": 0.02, "timeout_secs": 1.0, "unhealthy_threshold": 2},
            }
        )
        gateway, url = await stack.enter_async_context(router(settings))
        await eventually(lambda: all(b.probes.asked for b in gateway.fleet))
        yield gateway, url, fakes


async def ask(url: str, body: object = ASK) -> Answer:
    async with client() as session:
        return await post(session, url + "/generate", body)


def nothing_is_left(gateway: Gateway) -> bool:
    return not gateway.fleet.rooms and all(
        b.inflight == 0 and b.tokens == 0 and not b.legs for b in gateway.fleet
    )


@pytest.mark.parametrize("fault", [says(500, "no"), says_so_late], ids=["status", "event"])
@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_a_failure_before_the_first_byte_is_tried_elsewhere(fault: Handler, side: str) -> None:
    pools: dict[str, list[Handler]] = {"prefill": [fine, fine], "decode": [fine, fine]}
    pools[side][0] = fault
    async with cluster(pools["prefill"], pools["decode"]) as (gateway, url, fakes):
        answer = await ask(url)
        assert answer.status == 200
        assert answer.events[-1] == "[DONE]"
        bad, good = (0, 1) if side == "prefill" else (2, 3)
        assert answer.headers[f"x-sglang-{side}-worker"] == fakes[good].url
        rooms = [body["bootstrap_room"] for fake in fakes for body in fake.bodies]
        assert len(set(rooms)) == 2  # another attempt, another room
        await eventually(lambda: nothing_is_left(gateway))
        failed = {b.url: b.failed for b in gateway.fleet}
    # A prefill that only breaks off its own stream is not seen to fail: decode tells.
    assert failed[fakes[bad].url] == 1


async def test_the_client_hears_what_the_last_worker_said() -> None:
    async with cluster([fine], [says(500, "out of memory")]) as (_, url, fakes):
        answer = await ask(url)
    assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_error")
    assert answer.json["error"]["message"].startswith(f"{fakes[1].url} answered 500:")
    assert "out of memory" in answer.json["error"]["message"]
    assert len(fakes[1].bodies) == proxy.ATTEMPTS


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_a_request_that_is_at_fault_gets_the_workers_own_words(side: str) -> None:
    """Even if the other worker would wait for ever."""
    pools: dict[str, list[Handler]] = {"prefill": [hang], "decode": [hang]}
    pools[side] = [says(400, "too long")]
    async with cluster(pools["prefill"], pools["decode"]) as (gateway, url, fakes):
        answer = await ask(url)
        await eventually(lambda: nothing_is_left(gateway))
        assert sum(b.failed for b in gateway.fleet) == 0
        await eventually(lambda: sum(fake.left for fake in fakes) == 1)
    assert (answer.status, answer.json) == (400, {"error": {"message": "too long"}})


async def test_a_stream_that_breaks_off_says_so() -> None:
    async with cluster([fine], [break_off]) as (gateway, url, _):
        answer = await ask(url)
        assert nothing_is_left(gateway)
        assert gateway.fleet.decode.backends[0].failed == 1
        async with client() as session:
            found = await samples(session, url)
    assert answer.status == 200
    assert answer.events[0] == {"text": "a"}
    assert answer.events[1]["error"]["type"] == "stream_error"
    assert answer.events[2] == "[DONE]"
    assert found["smg_router_request_errors_total"] == 1


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_what_waits_for_a_hung_worker_goes_elsewhere_when_it_is_ejected(side: str) -> None:
    pools: dict[str, list[Handler]] = {"prefill": [fine, fine], "decode": [fine, fine]}
    pools[side][0] = hang
    if side == "prefill":
        pools["decode"][0] = hang  # without KV there is nothing to decode
    async with cluster(pools["prefill"], pools["decode"]) as (gateway, url, fakes):
        asked = asyncio.create_task(ask(url))
        hung = fakes[0 if side == "prefill" else 2]
        await eventually(lambda: bool(hung.bodies))
        hung.ready = 503
        answer = await asked
        assert answer.status == 200
        assert answer.headers[f"x-sglang-{side}-worker"] != hung.url
        await eventually(lambda: hung.left == 1)
        assert nothing_is_left(gateway)
        hung.ready = 200
        await eventually(lambda: all(b.probes.healthy for b in gateway.fleet))


async def test_a_stream_from_an_ejected_worker_is_given_up_when_it_falls_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probing, "SILENCE_S", 0.05)
    async with cluster([fine], [begin_and_hang]) as (gateway, url, fakes):
        asked = asyncio.create_task(ask(url))
        one = gateway.fleet.decode.backends[0]
        await eventually(lambda: any(leg.streaming and leg.limit for leg in one.legs))
        fakes[1].ready = 503
        answer = await asked
        assert nothing_is_left(gateway)
    assert "it is silent and fails its probes" in answer.events[1]["error"]["message"]


@pytest.mark.parametrize(("serve", "status"), [(hang, 504), (begin_and_hang, 200)])
async def test_no_request_takes_longer_than_it_may(serve: Handler, status: int) -> None:
    async with cluster([fine], [serve], timeout_s=0.2) as (gateway, url, _):
        answer = await ask(url)
        assert nothing_is_left(gateway)
    assert answer.status == status
    assert b"longer than 0.2 s" in answer.body


async def test_a_client_that_leaves_before_the_first_byte_ends_both_legs() -> None:
    async with cluster([hang], [hang]) as (gateway, url, fakes):
        asked = asyncio.create_task(ask(url))
        await eventually(lambda: all(fake.bodies for fake in fakes))
        asked.cancel()
        await eventually(lambda: all(fake.left == 1 for fake in fakes))
        await eventually(lambda: nothing_is_left(gateway))
        assert all(b.failed == 0 for b in gateway.fleet)


async def test_nobody_usable_is_said_at_once_with_a_time_to_come_again() -> None:
    async with cluster([fine], [fine]) as (gateway, url, fakes):
        fakes[1].ready = 503
        await eventually(lambda: not gateway.fleet.decode.backends[0].probes.healthy)
        answer = await ask(url)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json["error"]["code"] == "no_available_workers"
        assert not fakes[0].bodies
        fakes[1].ready = 200
        await eventually(lambda: gateway.fleet.decode.backends[0].probes.healthy)
        assert (await ask(url)).status == 200


async def test_beyond_its_limit_the_router_says_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MOST_INFLIGHT", 1)
    async with cluster([hang], [hang]) as (_, url, fakes):
        asked = asyncio.create_task(ask(url))
        await eventually(lambda: bool(fakes[0].bodies))
        answer = await ask(url)
        asked.cancel()
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json["error"]["code"] == "overloaded"


async def test_workers_without_ready_are_asked_for_their_health() -> None:
    async with cluster([fine], [fine]) as (gateway, _, fakes):
        fakes[1].ready = 404  # and /health is 404, too
        await eventually(lambda: not gateway.fleet.decode.backends[0].probes.healthy)
        assert gateway.fleet.prefill.backends[0].probes.healthy


async def test_a_model_that_nobody_serves_makes_no_series() -> None:
    async with cluster([fine], [fine]) as (gateway, url, _):
        gateway.fleet.decode.backends[0].model = "served"
        for name in ("a", "b", "c"):
            await ask(url, {**ASK, "model": name})
        async with client() as session, session.get(url + "/metrics") as answer:
            page = await answer.text()
    assert 'model="other"' in page
    assert 'model="a"' not in page


async def test_one_at_a_time_of_many_faults_loses_nothing() -> None:
    """Every request is answered, whatever its worker did; nothing of it stays."""
    faults = [fine, says(500, "x"), says_so_late, break_off, fine]
    async with cluster([fine, says(503, "y"), fine], faults) as (gateway, url, _):
        answers = await asyncio.gather(*(ask(url) for _ in range(40)))
        await eventually(lambda: nothing_is_left(gateway))
    whole = [a for a in answers if a.status == 200 and a.events[-1] == "[DONE]"]
    refused = [a for a in answers if a.status in (502, 503)]
    assert len(whole) + len(refused) == 40
    assert len(whole) >= 30
