"""A router in memory that behaves as sglang-router 0.3.2 or smg 1.13.0 was measured to, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pdtop.cluster.readings import Answer
from pdtop.routers.change import Result
from pdtop.routers.control import Control, Controlled
from pdtop.routers.detect import DIALECTS

REGISTERS_AFTER_S = 0.05
SMG_SETTLE_S = 5.0

Answering = Callable[[str, str, Any], Answer | None]


@dataclass
class ModelRouter:
    """``answering`` may answer in its place (None: it does itself). Addresses in ``dead`` never register."""

    engine: str
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)  # by url
    dead: set[str] = field(default_factory=set)
    answering: Answering = lambda method, path, body: None
    seen: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)  # by url
    _ids: dict[str, str] = field(default_factory=dict)
    _given: int = 0

    @property
    def smg(self) -> bool:
        return self.engine == "smg"

    @property
    def writes(self) -> list[str]:
        return [line for line in self.seen if not line.startswith("GET")]

    def control(self) -> Control:
        return Control(self.ask, DIALECTS[self.engine], "R1", clock=lambda: asyncio.get_running_loop().time())

    def put(self, url: str, worker_type: str = "decode", **more: object) -> str:
        """A registered worker; its id."""
        state = {"status": "ready", "labels": {}} if self.smg else {"metadata": {}}
        entry = {"id": self._id(url), "url": url, "worker_type": worker_type, "is_healthy": True}
        self.workers[url] = entry | state | {"load": 0} | more
        return self._id(url)

    async def ask(self, method: str, path: str, content: bytes | None) -> Answer:
        self.seen.append(f"{method} {path}")
        self.at.append(asyncio.get_running_loop().time())
        body = json.loads(content) if content is not None else None
        if body is not None:
            self.bodies.append(body)
        given = self.answering(method, path, body)
        return given if given is not None else self.answer(method, path, body)

    def answer(self, method: str, path: str, body: Any) -> Answer:
        worker_id = path.rpartition("/")[2]
        url = next((url for url, known in self._ids.items() if known == worker_id), "")
        match method:
            case "GET" if path == "/workers":
                return reply(200, {"workers": list(self.workers.values())})
            case "GET":
                return self._shown(url)
            case "POST":
                return self._post(body)
            case "DELETE" if url in self.workers:
                return self._delete(url)
            case "PATCH" | "PUT" if url in self.workers:
                self.workers[url].update({k: v for k, v in body.items() if k != "health"})
                return reply(202, {"status": "accepted"})
            case _:
                return reply(404, {"error": f"Worker {worker_id} not found", "code": "WORKER_NOT_FOUND"})

    def _id(self, url: str) -> str:
        if url not in self._ids:
            self._given += 1
            self._ids[url] = f"id-{self._given}"
        return self._ids[url]

    def _shown(self, url: str) -> Answer:
        job = {"job_status": self.jobs[url]} if url in self.jobs else {}
        if url in self.workers:
            return reply(200, self.workers[url] | job)
        if not job:
            return reply(404, {"error": "not found", "code": "WORKER_NOT_FOUND"})
        kind = "regular" if self.smg else "unknown"
        state = {"status": "pending"} if self.smg else {}
        shown = {"id": self._ids[url], "url": url, "worker_type": kind, "is_healthy": False}
        return reply(200, shown | state | job)

    def _post(self, body: dict[str, Any]) -> Answer:
        url = body["url"]
        if url in self.workers and self.smg:
            return reply(409, {"error": "Worker already exists", "code": "WORKER_ALREADY_EXISTS"})
        self._id(url)
        self.jobs[url] = {"job_type": "AddWorker", "status": "processing", "message": None}
        if url in self.workers:
            self.jobs[url] |= {"status": "failed", "message": f"create_worker - Worker {url} already exists"}
        elif url not in self.dead:
            asyncio.get_running_loop().call_later(REGISTERS_AFTER_S, self._register, body)
        return reply(202, {"status": "accepted", "worker_id": self._ids[url]})

    def _register(self, body: dict[str, Any]) -> None:
        more = {k: v for k, v in body.items() if k in ("bootstrap_port", "priority", "cost", "health")}
        self.put(body["url"], body.get("worker_type", "regular"), **more)
        self.jobs.pop(body["url"], None)

    def _delete(self, url: str) -> Answer:
        if self.smg and self.workers[url]["status"] != "draining":
            self.workers[url] |= {"status": "draining", "is_healthy": False}
            asyncio.get_running_loop().call_later(SMG_SETTLE_S, self.vanish, url)
        else:
            self.vanish(url)
        return reply(202, {"status": "accepted"})

    def vanish(self, url: str) -> None:
        """Taken out, whoever has registered there since: smg's delayed removal goes by address."""
        self.workers.pop(url, None)
        self._ids.pop(url, None)


def reply(status: int, body: object = None, **headers: str) -> Answer:
    """An answer with a JSON body, or with none."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(0.0, 0.01, status, names, content)


def done(found: Controlled) -> bool:
    return found.result is Result.DONE
