"""The admin API in smg's words: list, add, change, drain and remove workers; every change counts at once.

Changes made here are transient: when config.toml is read again with new content, the file wins. To make a
change last, change the file; pdtop's console does that and nothing else.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from aiohttp import web

from pdtop.config.masking import MASK, find_secrets
from pdtop.config.schema import Config
from pdtop.gateway.fleet import Fleet
from pdtop.gateway.pool import Backend, Role

_TYPES: Mapping[str, Role] = {"prefill": "prefill", "decode": "decode"}
_MOST_TEXT = 4096
_HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+(?:%\w+)?")


class BadRequest(Exception):
    """The body cannot be taken; the text says why."""


class Admin:
    """Handlers over a fleet. ``changed`` is called after each change."""

    def __init__(self, fleet: Fleet, changed: Callable[[], None]) -> None:
        self._fleet = fleet
        self._changed = changed

    async def list(self, request: web.Request) -> web.Response:
        now = monotonic()
        wanted = request.query.get("model")
        workers = [b.as_json(now) for b in self._fleet if wanted is None or b.model == wanted]
        stats = {
            "prefill_count": len(self._fleet.prefill),
            "decode_count": len(self._fleet.decode),
            "regular_count": 0,
        }
        return web.json_response({"workers": workers, "total": len(workers), "stats": stats})

    async def show(self, request: web.Request) -> web.Response:
        found = self._named(request)
        return found if isinstance(found, web.Response) else web.json_response(found.as_json(monotonic()))

    async def add(self, request: web.Request) -> web.Response:
        """``{"url", "worker_type", "bootstrap_port"?, "weight"?, ...}``: 202, or 409 if it is there."""
        try:
            body = await _object(request)
            url = _url(body.get("url"))
            kind = body.get("worker_type")
            if not isinstance(kind, str) or kind not in _TYPES:
                raise BadRequest(f"worker_type must be prefill or decode, not {json.dumps(kind)[:80]}")
            fields = _fields(body)
        except BadRequest as fault:
            return _refused(str(fault), 400, "BAD_REQUEST")
        role = _TYPES[kind]
        present = self._fleet.pool_of(role).find(url)
        if present is not None and not present.leaving:
            words = f"Worker already exists at URL '{present.url}' with ID {present.worker_id}"
            return _refused(words, 409, "WORKER_ALREADY_EXISTS")
        port = fields.pop("bootstrap_port", None)
        backend = self._fleet.add(role, url, port)
        self._set(backend, fields)
        place = f"/workers/{backend.worker_id}"
        answer = {"url": backend.url, "location": place, **_accepted(backend, "Worker added")}
        return web.json_response(answer, status=202, headers={"Location": place})

    async def change(self, request: web.Request) -> web.Response:
        """``weight``, ``drain``, ``bootstrap_port``, ``priority``, ``cost``, ``labels``, ``api_key``.

        202; fields that this router does not know are named in the answer and change nothing.
        """
        found = self._named(request)
        if isinstance(found, web.Response):
            return found
        try:
            body = await _object(request)
            fields = _fields(body)
        except BadRequest as fault:
            return _refused(str(fault), 400, "BAD_REQUEST")
        port = fields.pop("bootstrap_port", None)
        if port is not None and found.role == "prefill":
            found.bootstrap_port = port
        ignored = sorted(body.keys() - _READERS.keys())
        self._set(found, fields)
        words = f"Worker updated; ignored: {', '.join(ignored)[:200]}" if ignored else "Worker updated"
        return web.json_response(_accepted(found, words), status=202)

    async def remove(self, request: web.Request) -> web.Response:
        """No new requests from now on; gone when the last one has ended."""
        found = self._named(request)
        if isinstance(found, web.Response):
            return found
        self._fleet.remove(found)
        self._changed()
        words = "Worker removed" if found.gone else f"Worker drains: {found.inflight} requests are in flight"
        return web.json_response(_accepted(found, words), status=202)

    def _set(self, backend: Backend, fields: Mapping[str, Any]) -> None:
        if "weight" in fields:
            self._fleet.weigh(backend, fields["weight"])
        backend.drain = fields.get("drain", backend.drain)
        backend.priority = fields.get("priority", backend.priority)
        backend.cost = fields.get("cost", backend.cost)
        backend.labels.update(fields.get("labels", {}))
        backend.key = fields.get("api_key", backend.key)
        self._changed()

    def _named(self, request: web.Request) -> Backend | web.Response:
        wanted = request.match_info["id"]
        try:
            uuid.UUID(wanted)
        except ValueError:
            return _refused("Invalid worker ID: it is no UUID", 400, "BAD_REQUEST")
        backend = self._fleet.find(wanted.lower())
        if backend is None:
            return _refused(f"Worker {wanted} not found", 404, "WORKER_NOT_FOUND")
        return backend


def effective(config: Config) -> object:
    """The settings in force as JSON, without anything that looks like a key."""
    return _masked(config.model_dump(mode="json"), {text for _, text in find_secrets(config.model_dump())})


def _masked(value: object, secrets: set[str]) -> object:
    if isinstance(value, dict):
        return {_masked(k, secrets): _masked(v, secrets) for k, v in value.items()}
    if isinstance(value, list):
        return [_masked(v, secrets) for v in value]
    if isinstance(value, str):
        for secret in sorted(secrets, key=len, reverse=True):
            value = value.replace(secret, MASK)
    return value


async def _object(request: web.Request) -> dict[str, object]:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise BadRequest("Invalid JSON data: the body is not JSON") from None
    if not isinstance(body, dict):
        raise BadRequest("Invalid JSON data: the body is not an object")
    return body


def _url(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadRequest("Invalid JSON data: missing field `url`")
    if len(value) > _MOST_TEXT or any(c.isspace() or not c.isprintable() for c in value):
        raise BadRequest("url holds blanks or control characters, or is too long")
    if not value.lower().startswith(("http://", "https://")):
        raise BadRequest("url must start with http:// or https://")
    if not _is_place(value):
        raise BadRequest("url must be http://host:port and nothing more")
    return value


def _is_place(url: str) -> bool:
    """A host and perhaps a port: no user, path or query, which would end up in lists and labels."""
    try:
        parts = urlsplit(url)
        bare = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    named = _HOST.fullmatch(host) is not None and all(0 < len(one) < 64 for one in host.split("."))
    return port != 0 and "@" not in url and url.rstrip("/").lower() == bare.lower() and named


def _weight(value: object) -> float:
    return _number(value, "weight", lambda n: n >= 0, "a finite number, 0 or more")


def _cost(value: object) -> float:
    return _number(value, "cost", lambda n: n > 0, "a finite number above 0")


def _priority(value: object) -> int:
    return int(_number(value, "priority", lambda n: n == int(n) and 0 <= n < 2**32, "a u32"))


def _port(value: object) -> int | None:
    if value is None:
        return None
    return int(_number(value, "bootstrap_port", lambda n: n == int(n) and 1 <= n < 2**16, "a port"))


def _number(value: object, name: str, good: Callable[[float], bool], rule: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # A number of hundreds of digits is an int that no float can hold.
        with suppress(OverflowError):
            number = float(value)
            if math.isfinite(number) and good(number):
                return number
    raise BadRequest(f"{name} must be {rule}")


def _drain(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadRequest("drain must be true or false")
    return value


def _labels(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise BadRequest("labels must be an object of texts")
    return {str(k): v for k, v in value.items()}


def _key(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise BadRequest("api_key must be a text")
    return value


def _given(value: object) -> object:
    return value


#: Fields that a body may have, and how each is read; the last four only say who the worker is.
_READERS: Mapping[str, Callable[[object], object]] = {
    "weight": _weight,
    "drain": _drain,
    "priority": _priority,
    "cost": _cost,
    "labels": _labels,
    "bootstrap_port": _port,
    "api_key": _key,
    "url": _given,
    "worker_type": _given,
    "model_id": _given,
    "runtime_type": _given,
}


def _fields(body: Mapping[str, object]) -> dict[str, Any]:
    """All known fields of a body, checked. Raises :class:`BadRequest`."""
    return {name: read(body[name]) for name, read in _READERS.items() if name in body}


def _accepted(backend: Backend, words: str) -> dict[str, object]:
    return {"status": "accepted", "worker_id": backend.worker_id, "message": words}


def _refused(words: str, status: int, code: str) -> web.Response:
    return web.json_response(
        {"error": words, "code": code}, status=status, headers={"x-smg-error-code": code}
    )
