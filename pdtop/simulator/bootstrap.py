"""How decode finds prefill: the bootstrap server on prefill, and decode's question to it.

A real engine moves KV over RDMA after a handshake; here one plain HTTP request does for both. Decode asks
``POST /kv/{room}`` when it has memory for a room, and the answer comes when the KV has arrived or is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from pdtop.simulator.engine import KvSent, Site

#: A real decode worker notices a dead prefill worker by its missing heartbeats, not at once.
HEARTBEAT_LOSS_S = 10.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """What became of the KV of a room."""

    ok: bool
    cached_tokens: int


class BootstrapServer:
    """Prefill's side. ``grant`` and ``revoke`` go to the scheduler, ``sent`` comes from it."""

    def __init__(
        self, topology: dict[str, object], grant: Callable[[int, Site], None], revoke: Callable[[int], None]
    ) -> None:
        self._topology = topology
        self._grant = grant
        self._revoke = revoke
        self._waiting: dict[int, asyncio.Future[KvSent]] = {}
        self.app = web.Application()
        self.app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/route", self._route),
                web.post("/kv/{room:\\d+}", self._kv),
            ]
        )

    def sent(self, event: KvSent) -> None:
        future = self._waiting.pop(event.room, None)
        if future is not None and not future.done():
            future.set_result(event)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _route(self, request: web.Request) -> web.Response:
        return web.json_response(self._topology)

    async def _kv(self, request: web.Request) -> web.Response:
        room = int(request.match_info["room"])
        place = await request.json()
        future: asyncio.Future[KvSent] = asyncio.get_running_loop().create_future()
        self._waiting[room] = future
        self._grant(room, Site(str(place["host"]), str(place["rack"])))
        try:
            event = await future
        except asyncio.CancelledError:
            self._waiting.pop(room, None)
            self._revoke(room)
            raise
        return web.json_response({"ok": event.ok, "cached_tokens": event.cached_tokens})


async def fetch_kv(session: aiohttp.ClientSession, address: str, room: int, here: Site) -> Arrival:
    """Decode's side: returns when the KV of ``room`` is here or will not come."""
    try:
        url = f"http://{address}/kv/{room}"
        async with session.post(url, json={"host": here.host, "rack": here.rack}) as response:
            if response.status != 200:
                return Arrival(False, 0)
            answer = await response.json()
            return Arrival(bool(answer["ok"]), int(answer["cached_tokens"]))
    except (aiohttp.ClientError, TimeoutError):
        await asyncio.sleep(HEARTBEAT_LOSS_S)
        return Arrival(False, 0)
