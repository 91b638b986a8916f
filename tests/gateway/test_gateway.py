"""The router over simulated workers: round trips, retries, clients that leave, what it says of itself."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from pdtop.config.schema import Config
from pdtop.config.watch import ConfigWatch
from pdtop.gateway.app import Gateway
from pdtop.gateway.fleet import CannotServe, Fleet
from pdtop.gateway.health import BREAKER_FAILURES
from pdtop.simulator.worker import SimWorker
from tests.simulator.support import DECODE, PREFILL, client, eventually, get, post, until, workers

CHAT: dict[str, Any] = {
    "model": "demo-llama-70b",
    "messages": [{"role": "user", "content": "x" * 4000}],
    "max_tokens": 9,
}


def config(
    running: Sequence[SimWorker],
    policy: str = "round_robin",
    *,
    server: dict[str, object] | None = None,
    **more: dict[str, object],
) -> Config:
    """Settings for these workers; ``more`` are further tables."""
    pools: dict[str, dict[str, Any]] = {"prefill": {}, "decode": {}}
    for role, table in pools.items():
        members = [w for w in running if w.spec.role == role]
        table |= {"policy": policy, "workers": [w.url.removeprefix("http://") for w in members]}
        if role == "prefill":
            ports = {w.url.removeprefix("http://"): {"bootstrap_port": w.bootstrap_port} for w in members}
            table["worker"] = ports
    health = {"interval_secs": 0.02, "timeout_secs": 1.0, "unhealthy_threshold": 2}
    return Config.model_validate({**pools, "health": health, "server": server or {}, **more})


@asynccontextmanager
async def router(
    settings: Config, *, exposed: bool = False, watch: ConfigWatch | None = None
) -> AsyncIterator[tuple[Gateway, str]]:
    gateway = Gateway(settings, seed=1, exposed=exposed, watch=watch)
    runner = web.AppRunner(gateway.app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await gateway.start()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield gateway, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        await gateway.stop()


async def samples(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """The router's metrics by name and labels without addresses, summed."""
    page = (await get(session, url + "/metrics")).body.decode()
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_goes_through_both_workers(stream: bool) -> None:
    async with workers(PREFILL, DECODE) as running, router(config(running)) as (_, url), client() as session:
        answer = await post(session, url + "/v1/chat/completions", {**CHAT, "stream": stream})
        assert answer.status == 200
        if stream:
            assert answer.events[-1] == "[DONE]"
            content = [
                e["choices"][0]["delta"].get("content", "") for e in answer.events[:-1] if e["choices"]
            ]
            assert len("".join(content).split()) == 9
        else:
            assert answer.json["usage"]["completion_tokens"] == 9
        for worker in running:
            truth = (await get(session, worker.url + "/truth")).json
            assert truth["counts"]["finished"] == 1
        found = await samples(session, url)
    assert found["smg_worker_requests_total"] == 2
    assert found["smg_worker_cb_outcomes_total"] == 2
    assert found["smg_router_requests_total"] == 1
    assert found.get("smg_pd_ttft_seconds_count", 0.0) == stream
    assert found["smg_pd_prefill_duration_seconds_count"] == 1
    assert found["smg_router_request_duration_seconds_count"] == 1
    assert found["smg_worker_requests_active"] == 0
    assert found["smg_worker_health"] == 2


async def test_generate_goes_through_too() -> None:
    async with workers(PREFILL, DECODE) as running, router(config(running)) as (_, url), client() as session:
        body = {"text": "x" * 40, "sampling_params": {"max_new_tokens": 5}}
        answer = await post(session, url + "/generate", body)
    assert answer.json["meta_info"]["completion_tokens"] == 5


async def test_round_robin_shares_evenly() -> None:
    async with (
        workers(PREFILL, PREFILL, DECODE, DECODE) as running,
        router(config(running)) as (gateway, url),
        client() as session,
    ):
        for _ in range(6):
            assert (await post(session, url + "/v1/chat/completions", CHAT)).status == 200
        assert [b.dispatched for b in gateway.fleet] == [3, 3, 3, 3]


async def test_a_dead_worker_costs_retries_but_no_answers() -> None:
    async with (
        workers(PREFILL, DECODE, DECODE) as running,
        router(config(running, health={"interval_secs": 60.0})) as (gateway, url),
        client() as session,
    ):
        dead = gateway.fleet.decode.backends[0]
        await eventually(lambda: dead.probes.asked)
        await running[1].stop()
        for _ in range(6):
            assert (await post(session, url + "/v1/chat/completions", CHAT)).status == 200
        assert dead.failed == BREAKER_FAILURES  # from then on it gets none
        found = await samples(session, url)
        gateway.apply(config(running))  # probes often from now on
        await eventually(lambda: not dead.probes.healthy)
        listed = (await get(session, url + "/workers")).json
    assert found["smg_worker_retries_total"] >= 2  # one retry counts for both pools
    assert found["smg_worker_errors_total"] >= 1
    assert [w["status"] for w in listed["workers"]] == ["ready", "not_ready", "ready"]


async def test_without_decode_there_is_no_service() -> None:
    async with (
        workers(PREFILL) as running,
        router(config(running)) as (_, url),
        client() as session,
    ):
        answer = await post(session, url + "/v1/chat/completions", CHAT)
        ready = await get(session, url + "/readiness")
        health = await get(session, url + "/health")
    assert (answer.status, answer.json["error"]["code"]) == (503, "no_available_workers")
    assert (ready.status, ready.json["reason"]) == (503, "insufficient healthy workers")
    assert health.body == b"OK"


async def test_errors_of_all_workers_reach_the_client_as_one() -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        router(config(running)) as (_, url),
        client() as session,
    ):
        await post(session, running[0].url + "/sim/fault", {"kind": "transfer_fail", "value": 1.0})
        answer = await post(session, url + "/v1/chat/completions", {**CHAT, "stream": True})
    assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_error")
    assert "transfer" in answer.json["error"]["message"]


async def test_a_client_that_leaves_ends_both_legs() -> None:
    slow = replace(DECODE, decode=replace(DECODE.decode, step_s=0.05))
    async with (
        workers(PREFILL, slow) as (p, d),
        router(config([p, d])) as (gateway, url),
        client() as session,
    ):
        body = {**CHAT, "stream": True, "max_tokens": 2000}
        async with session.post(url + "/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
            await until(session, d, "running", 1)
        for worker in (p, d):
            await until(session, worker, "used_tokens", 0)
        await eventually(lambda: not any(b.inflight for b in gateway.fleet))


async def test_a_decode_that_dies_in_a_stream_is_said_in_the_stream() -> None:
    slow = replace(DECODE, decode=replace(DECODE.decode, step_s=0.05))
    async with (
        workers(PREFILL, slow) as (p, d),
        router(config([p, d])) as (gateway, url),
        client() as session,
    ):
        body = {**CHAT, "stream": True, "max_tokens": 2000}
        async with session.post(url + "/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
            await d.stop()
            rest = await answer.read()
        assert b"stream_error" in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        assert gateway.fleet.decode.backends[0].failed == 1


async def test_what_the_router_says_of_itself() -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        router(config(running)) as (gateway, url),
        client() as session,
    ):
        loads = await get(session, url + "/get_loads")
        listed = (await get(session, url + "/workers")).json
        one = await get(session, url + f"/workers/{listed['workers'][0]['id']}")
        nobody = await get(session, url + f"/workers/{uuid.uuid4()}")
        no_id = await get(session, url + "/workers/nobody")
        unknown = await get(session, url + "/list_workers")
        await eventually(lambda: all(b.model != "unknown" for b in gateway.fleet))
        models = await get(session, url + "/v1/models")
    assert loads.headers["Server"].startswith("pdtop/")
    assert loads.json["version"].startswith("pdtop-")
    assert {entry["worker"] for entry in loads.json["loads"]} == {w.url for w in running}
    assert listed["stats"] == {"prefill_count": 1, "decode_count": 1, "regular_count": 0}
    assert one.json["url"] == running[0].url
    assert (nobody.status, nobody.json["code"]) == (404, "WORKER_NOT_FOUND")
    assert (no_id.status, no_id.json["code"]) == (400, "BAD_REQUEST")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "unknown_url")
    assert [m["id"] for m in models.json["data"]] == ["demo-llama-70b"]


async def test_a_body_that_is_no_request() -> None:
    async with router(config([])) as (_, url), client() as session:
        for data in (b"{", b"[]"):
            async with session.post(url + "/generate", data=data) as answer:
                assert answer.status == 400
                assert json.loads(await answer.read())["error"]["code"] == "invalid_request"


def test_a_policy_that_is_not_here_is_said_and_not_replaced() -> None:
    with pytest.raises(CannotServe, match=r"prefill\.policy = 'bucket': this router has round_robin"):
        Fleet(config([], policy="bucket"))


async def test_a_client_whose_connection_closes_is_no_error_of_the_router(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with workers(PREFILL, DECODE) as running, router(config(running)) as (gateway, url), client() as s:
        write = web.StreamResponse.write

        async def closing(out: web.StreamResponse, data: bytes) -> None:
            if "x-sglang-worker" not in out.headers:
                return await write(out, data)
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

        monkeypatch.setattr(web.StreamResponse, "write", closing)
        with suppress(aiohttp.ClientError):
            await post(s, url + "/v1/chat/completions", {**CHAT, "stream": True})
        monkeypatch.undo()
        await eventually(lambda: not any(b.inflight for b in gateway.fleet))
        page = (await get(s, url + "/metrics")).body.decode()
    assert 'status_code="499"' in page
    assert "Error handling request" not in caplog.text
