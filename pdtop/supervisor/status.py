"""What a supervisor tells of itself: ``GET /supervisor`` on a port of this machine, as JSON, without keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal

from aiohttp import web

State = Literal["starting", "serving", "handing_over", "down", "stopping"]


@dataclass(frozen=True, slots=True)
class Former:
    """A run that has been replaced and lets its streams end."""

    pid: int
    connections: int


@dataclass(frozen=True, slots=True)
class Status:
    """``restarts``: after a crash; ``hand_overs``: planned ones. Times are ISO 8601, None: never."""

    version: str
    engine: str
    state: State
    pid: int | None
    since: str | None
    command: tuple[str, ...]
    url: str
    metrics_url: str
    restarts: int
    hand_overs: int
    last_restart: str | None
    last_restart_reason: str
    waiting_s: float | None  # until the next try to start it
    connections: int
    held_out: int  # connections that got a 503 because nothing served in time
    former: tuple[Former, ...]
    config: str
    config_problems: tuple[str, ...]  # of the file as it is now: it is not in force
    pending: tuple[str, ...]  # of the file, not yet in force
    failed: str  # why the last planned restart did not happen
    not_honoured: tuple[str, ...]

    def as_dict(self) -> Mapping[str, object]:
        return asdict(self)


def iso(seconds: float | None) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds is not None else None


class StatusPage:
    """Serves what ``status`` returns, on loopback only."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        app = web.Application()
        app.add_routes([web.get("/supervisor", self._answer), web.get("/", self._answer)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)

    async def listen(self, port: int) -> int:
        """Where it listens then. Raises OSError."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, _: web.Request) -> web.Response:
        return web.json_response(self._status().as_dict())
