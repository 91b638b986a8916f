"""The admin API: smg's words and answers, changes that count at once, nothing that fires later."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import pytest

from pdtop.config.schema import Config
from pdtop.gateway.app import Gateway
from tests.gateway.test_gateway import CHAT, config, router
from tests.simulator.support import DECODE, PREFILL, Answer, client, eventually, get, post, workers


class Desk(NamedTuple):
    """A router without workers behind it, and a client."""

    gateway: Gateway
    url: str
    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        async with self.session.request(method, self.url + path, json=body, headers=headers) as answer:
            return Answer(answer.status, await answer.read(), dict(answer.headers))

    async def listed(self) -> dict[str, dict[str, Any]]:
        """Workers by address."""
        found = (await self.ask("GET", "/workers")).json["workers"]
        return {w["url"]: w for w in found}


@asynccontextmanager
async def desk(*, exposed: bool = False, server: dict[str, object] | None = None) -> AsyncIterator[Desk]:
    settings = Config.model_validate(
        {
            "server": server or {},
            "prefill": {"workers": ["127.0.0.1:11"], "policy": "round_robin"},
            "decode": {"workers": ["127.0.0.1:21", "127.0.0.1:22"], "policy": "round_robin"},
        }
    )
    async with router(settings, exposed=exposed) as (gateway, url), client() as session:
        yield Desk(gateway, url, session)


async def test_adding() -> None:
    async with desk() as d:
        body = {"url": "http://127.0.0.1:12", "worker_type": "prefill", "bootstrap_port": 9000, "weight": 0.5}
        answer = await d.ask("POST", "/workers", body)
        assert answer.status == 202
        assert answer.json["status"] == "accepted"
        assert answer.headers["Location"] == answer.json["location"] == f"/workers/{answer.json['worker_id']}"
        shown = (await d.ask("GET", answer.headers["Location"])).json
        assert (shown["url"], shown["worker_type"], shown["bootstrap_port"]) == (
            "http://127.0.0.1:12",
            "prefill",
            9000,
        )
        assert (shown["weight"], shown["draining"]) == (0.5, False)
        again = await d.ask("POST", "/workers", {**body, "url": "HTTP://127.0.0.1:12/"})
        assert (again.status, again.json["code"]) == (409, "WORKER_ALREADY_EXISTS")
        other = await d.ask("POST", "/workers", {"url": "http://127.0.0.1:23", "worker_type": "decode"})
        assert other.status == 202
        stats = (await d.ask("GET", "/workers")).json["stats"]
        assert stats == {"prefill_count": 2, "decode_count": 3, "regular_count": 0}


@pytest.mark.parametrize(
    "body",
    [
        {"worker_type": "decode"},
        {"url": "127.0.0.1:29", "worker_type": "decode"},
        {"url": "http://127.0.0.1:29\n", "worker_type": "decode"},
        {"url": "http://127.0.0.1:29"},
        {"url": "http://127.0.0.1:29", "worker_type": "banana"},
        {"url": "http://127.0.0.1:29", "worker_type": ["decode"]},
        {"url": "http://127.0.0.1:29", "worker_type": "decode", "weight": -1},
        {"url": "http://127.0.0.1:29", "worker_type": "decode", "priority": 1.5},
        {"url": "http://127.0.0.1:29", "worker_type": "prefill", "bootstrap_port": 70000},
        [],
    ],
)
async def test_what_cannot_be_added(body: object) -> None:
    async with desk() as d:
        answer = await d.ask("POST", "/workers", body)
        assert (answer.status, answer.json["code"]) == (400, "BAD_REQUEST")
        assert len(await d.listed()) == 3


async def test_changing_counts_at_once() -> None:
    async with desk() as d:
        path = f"/workers/{(await d.listed())['http://127.0.0.1:21']['id']}"
        body = {
            "weight": 0.25,
            "drain": True,
            "priority": 7,
            "labels": {"zone": "b"},
            "cost": 2,
            "status": "x",
        }
        answer = await d.ask("PATCH", path, body)
        assert answer.status == 202
        assert answer.json["message"] == "Worker updated; ignored: status"
        shown = (await d.ask("GET", path)).json
        assert (shown["weight"], shown["priority"], shown["cost"]) == (0.25, 7, 2.0)
        assert (shown["status"], shown["draining"], shown["labels"]) == ("draining", True, {"zone": "b"})
        await d.ask("PATCH", path, {"drain": False, "labels": {"team": "x"}, "api_key": "sk-secret-secret"})
        shown = (await d.ask("GET", path)).json
        assert (shown["draining"], shown["labels"]) == (False, {"zone": "b", "team": "x"})
        assert "sk-secret" not in str(await d.listed())
        said = (await d.ask("GET", "/config")).json
        assert said["transient"] == ["http://127.0.0.1:21 has weight 0.25 because of the API"]


@pytest.mark.parametrize(
    "body",
    [
        {"weight": True},
        {"weight": "1"},
        {"weight": float("inf")},
        {"drain": 1},
        {"cost": 0},
        {"priority": -5},
        {"labels": {"a": 1}},
        {"api_key": ""},
    ],
)
async def test_what_cannot_be_changed_changes_nothing(body: dict[str, object]) -> None:
    async with desk() as d:
        one = d.gateway.fleet.decode.backends[0]
        answer = await d.ask("PATCH", f"/workers/{one.worker_id}", {"drain": True, **body})
        assert (answer.status, answer.json["code"]) == (400, "BAD_REQUEST")
        assert (one.weight, one.drain, one.cost, one.priority) == (1.0, False, 1.0, 50)
        assert (one.labels, one.key) == ({}, None)


async def test_nobody_by_that_id() -> None:
    async with desk() as d:
        for method in ("GET", "PATCH", "DELETE"):
            answer = await d.ask(method, f"/workers/{uuid.uuid4()}", {})
            assert (answer.status, answer.json["code"]) == (404, "WORKER_NOT_FOUND")
            answer = await d.ask(method, "/workers/http%3A%2F%2Fd%3A1", {})
            assert answer.status == 400
        assert (await d.ask("PUT", f"/workers/{uuid.uuid4()}", {})).status == 405


async def test_an_idle_worker_is_gone_at_once_and_may_come_back() -> None:
    async with desk() as d:
        worker = (await d.listed())["http://127.0.0.1:21"]
        answer = await d.ask("DELETE", f"/workers/{worker['id']}")
        assert (answer.status, answer.json["status"]) == (202, "accepted")
        assert "http://127.0.0.1:21" not in await d.listed()
        assert (await d.ask("DELETE", f"/workers/{worker['id']}")).status == 404
        back = await d.ask("POST", "/workers", {"url": "http://127.0.0.1:21", "worker_type": "decode"})
        assert (back.status, back.json["worker_id"]) == (202, worker["id"])


async def test_a_busy_worker_drains_and_its_stream_ends_well() -> None:
    async with workers(PREFILL, DECODE, DECODE) as running, router(config(running)) as (gateway, url):
        async with client() as session:
            leaving = gateway.fleet.decode.backends[0]
            body = {**CHAT, "stream": True, "max_tokens": 300}
            async with session.post(url + "/v1/chat/completions", json=body) as answer:
                assert answer.headers["x-sglang-decode-worker"] == leaving.url
                async with session.delete(f"{url}/workers/{leaving.worker_id}") as removed:
                    assert removed.status == 202
                shown = (await get(session, f"{url}/workers/{leaving.worker_id}")).json
                assert (shown["status"], shown["load"]) == ("draining", 1)
                for _ in range(3):
                    other = await post(session, url + "/v1/chat/completions", CHAT)
                    assert other.headers["x-sglang-decode-worker"] == running[2].url
                assert (await answer.read()).endswith(b"data: [DONE]\n\n")
            await eventually(lambda: leaving.gone)
            page = (await get(session, url + "/metrics")).body.decode()
        assert f'smg_worker_requests_active{{worker="{leaving.url}"}}' not in page
        assert [b.url for b in gateway.fleet.decode] == [running[2].url]


async def test_a_removal_that_is_taken_back_fires_no_more() -> None:
    async with workers(PREFILL, DECODE) as running, router(config(running)) as (gateway, url):
        async with client() as session:
            one = gateway.fleet.decode.backends[0]
            body = {**CHAT, "stream": True, "max_tokens": 300}
            async with session.post(url + "/v1/chat/completions", json=body) as answer:
                async with session.delete(f"{url}/workers/{one.worker_id}"):
                    assert one.status == "draining"
                back = await post(session, url + "/workers", {"url": one.url, "worker_type": "decode"})
                assert (back.status, one.status) == (202, "ready")
                await answer.read()
            assert (await post(session, url + "/v1/chat/completions", CHAT)).status == 200
        assert gateway.fleet.decode.backends == [one]


async def test_keys_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDTOP_API_KEY", "data-key")
    monkeypatch.setenv("PDTOP_ADMIN_KEY", "admin-key")
    async with desk() as d:
        data, admin = {"Authorization": "Bearer data-key"}, {"Authorization": "Bearer admin-key"}
        refused = await d.ask("POST", "/generate", {"text": "x"})
        assert (refused.status, refused.json["error"]["code"]) == (401, "invalid_api_key")
        assert refused.headers["WWW-Authenticate"] == 'Bearer realm="data-plane"'
        assert (await d.ask("GET", "/workers")).status == 401
        assert (await d.ask("GET", "/workers", **data)).status == 200
        new = {"url": "http://127.0.0.1:23", "worker_type": "decode"}
        assert (await d.ask("POST", "/workers", new, **data)).status == 401
        assert (await d.ask("POST", "/workers", new, **admin)).status == 202
        for path in ("/health", "/readiness", "/metrics"):
            assert (await d.ask("GET", path)).status != 401
        page = (await d.ask("GET", "/config", **admin)).body
        assert b"data-key" not in page and b"admin-key" not in page


async def test_workers_get_the_key_that_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDTOP_API_KEY", "common")
    monkeypatch.setenv("D1_KEY", "own")
    table: dict[str, object] = {
        "workers": ["127.0.0.1:21", "127.0.0.1:22"],
        "policy": "random",
        "worker": {"127.0.0.1:21": {"api_key_env": "D1_KEY"}},
    }
    async with router(config([], decode=table)) as (gateway, _):
        assert gateway._dialer is not None
        one, two = gateway.fleet.decode.backends
        keys = [gateway._dialer.headers(b, {})["Authorization"] for b in (one, two)]
        assert keys == ["Bearer own", "Bearer common"]
        two.key = "by API"
        assert gateway._dialer.headers(two, {})["Authorization"] == "Bearer by API"


async def test_the_admin_api_is_off_where_others_reach_it_without_a_key() -> None:
    async with desk(exposed=True) as d:
        refused = await d.ask("POST", "/workers", {"url": "http://127.0.0.1:23", "worker_type": "decode"})
        assert (refused.status, refused.json["error"]["code"]) == (403, "admin_api_off")
        assert len(await d.listed()) == 3


async def test_the_configuration_shows_no_secrets() -> None:
    server: dict[str, object] = {"upstream_base_url": "https://user:pass1234@h/api", "api_key": "sk-abcdefgh"}
    async with desk(server=server) as d:
        said = (await d.ask("GET", "/config")).json
    assert said["config"]["server"]["api_key"] == "••••••"
    assert said["config"]["server"]["upstream_base_url"] == "https://user:••••••@h/api"
    assert said["config"]["decode"]["workers"] == ["127.0.0.1:21", "127.0.0.1:22"]
    assert said["reload"]["outcome"] == "none"
