"""Anything that may answer in a router's place, at each request of an action: it ends in harmless words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from pdtop.cluster.model import Role, State
from pdtop.cluster.readings import Answer
from pdtop.routers.change import Result
from pdtop.routers.control import Control, Controlled, WorkerSpec
from tests.cluster import virtual_time
from tests.cluster.virtual_time import run
from tests.routers.model_router import ModelRouter, reply

URL = "http://10.0.2.21:30001"
SPEC = WorkerSpec(URL, Role.DECODE)
NASTY = "\x1b[2J\x1b]0;x\x07\u202e\r\nX: y \ud800[bold]z[/bold]"
PATHS = re.compile(r"((GET|POST) /workers|(GET|DELETE|PUT|PATCH) /workers/[A-Za-z0-9][A-Za-z0-9._-]*)\Z")


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to wait for between two jumps of the clock."""
    monkeypatch.setattr(virtual_time, "GRACE_S", 0.0)


def page(status: int, body: bytes, kind: str = "application/json") -> Answer:
    return Answer(0.0, 0.01, status, {"content-type": kind}, body)


def failed(failure: State, detail: str, body: bytes = b"", status: int | None = None) -> Answer:
    return Answer(0.0, 5.0, status, body=body, failure=failure, detail=detail, truncated=bool(body))


def listed(*entries: object, **more: object) -> bytes:
    return json.dumps({"workers": list(entries)} | more).encode()


def one(**more: object) -> bytes:
    entry = {"id": "id-1", "url": URL, "worker_type": "decode", "is_healthy": True} | more
    return listed(entry, **entry)


SINGLE = ("worker_type", "status", "is_healthy", "load", "bootstrap_port", "priority", "cost", "health")
ODD: dict[str, object] = {name: {"a": []} for name in SINGLE}
EMPTY = (200, 201, 202, 204, 206, 304, 400, 404, 405, 409)
OBJECT = (200, 204, 401, 403, 422, 429, 500, 502, 503)
ANSWERS: dict[str, Answer] = {
    "a page of HTML": page(200, f"<html>{NASTY}</html>".encode("utf-8", "replace"), "text/html"),
    "garbage": page(200, bytes(range(256)) * 4),
    "half JSON": page(200, one()[:-20]),
    "null": page(200, b"null"),
    "numbers": page(200, listed(1, None, True, [], {"url": 5}, worker_id=7, error=[], job_status=3)),
    "wrong types": page(
        200, one(**ODD, labels=[1], job_status={"status": [], "job_type": {}, "message": 3}, worker_id={})
    ),
    "wrong types in labels": page(
        200, one(labels={"a": {"b": 1}, NASTY: NASTY}, health={"timeout_secs": "x"})
    ),
    "numbers beyond all bounds": page(
        200, one(load=1e400, priority=10**30, cost=-1, bootstrap_port=2**70).replace(b"-1", b"NaN")
    ),
    "a number without end": page(200, b'{"workers": [' + b"9" * 10_000 + b"]}"),
    "lists in lists": page(200, b"[" * 100_000),
    "objects in objects": page(200, b'{"workers":' * 900 + b"1" + b"}" * 900),
    "deep in one entry": page(200, one()[:-3] + b', "status": ' + b"[" * 900 + b"]" * 900 + b"}]}"),
    "ten thousand others": page(
        200, listed(*({"id": f"x{n}", "url": f"http://10.1.{n // 200}.{n % 200}:1"} for n in range(10_000)))
    ),
    "twice, with slashes": page(
        200,
        listed(*({"id": "id-1", "url": URL + more, "worker_type": "decode"} for more in ("", "/", "//", ""))),
    ),
    "an id that climbs": page(200, one(id="../../flush_cache", worker_id="../../flush_cache")),
    "an id of dots": page(200, one(id="..", worker_id="..")),
    "an id of lines": page(200, one(id="x\r\nHost: y", worker_id="x\r\nHost: y")),
    "an id of markup": page(200, one(id=NASTY, worker_id=NASTY)),
    "an address of markup": page(200, one(url=f"http://{NASTY}:1")),
    "a message of markup": page(500, json.dumps({"error": NASTY * 50}).encode()),
    "a plain message of markup": page(500, NASTY.encode("utf-8", "replace"), "text/plain"),
    "a failed job": page(200, one(is_healthy=False, job_status={"status": "failed", "message": NASTY})),
    "a redirect": failed(State.REDIRECT, "307 to http://10.9.9.9/; not followed", status=307),
    "drips": failed(State.TIMEOUT, "no complete answer within 5 s (10 bytes came)", one()[:10], 200),
    "no end": failed(State.PARTIAL, "larger than 16 MiB; the rest was not read", one(), 200),
    "cut off": failed(State.PARTIAL, "the connection ended early, after 20 bytes", one()[:20], 200),
    "nothing listens": failed(State.REFUSED, "connection refused: nothing listens there"),
    **{f"always {status}": page(status, b"") for status in EMPTY},
    **{f"always {status} {{}}": page(status, b"{}") for status in OBJECT},
}
ACTIONS: dict[str, Callable[[Control], Any]] = {
    "add": lambda control: control.add(SPEC, api_key="sk-worker-secret-0123456789"),
    "remove": lambda control: control.remove("id-1", URL),
    "change": lambda control: control.change("id-1", {"priority": 60}),
    "change what is hidden": lambda control: control.change("id-1", {"health": {"failure_threshold": 4}}),
}
STEPS = ("the first read", "the write", "reads after it", "everything")


def acted(engine: str, action: str, step: str, answer: Answer) -> tuple[ModelRouter, Controlled]:
    """One action at a router whose answer at one step is another's."""
    router = ModelRouter(engine)
    if action != "add":
        router.put(URL)

    def answering(method: str, path: str, body: Any) -> Answer | None:
        reads = method == "GET"
        now = {
            "the first read": reads and len(router.seen) == 1,
            "the write": not reads,
            "reads after it": reads and bool(router.writes),
            "everything": True,
        }
        return answer if now[step] else None

    router.answering = answering
    return router, run(ACTIONS[action](router.control()))


def harmless(router: ModelRouter, found: Controlled) -> None:
    told = [found.words, found.fix, *(word for call in found.calls for word in (call.words, call.path))]
    assert all(words.isprintable() for words in told), told
    assert "secret" not in "".join(told)
    assert max(map(len, told)) < 500
    assert [line for line in router.seen if not PATHS.match(line)] == []


@pytest.mark.parametrize("engine", ["sglang-router", "smg"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("step", STEPS)
def test_it_ends_in_words(engine: str, action: str, step: str) -> None:
    for name, answer in ANSWERS.items():
        router, found = acted(engine, action, step, answer)
        harmless(router, found)
        assert found.words, name
        assert found.result is Result.DONE or found.fix, (name, found)
        assert len(router.writes) <= 2, (name, router.seen)


@pytest.mark.parametrize("action", ["add", "remove"])
@pytest.mark.parametrize(
    "name",
    ["a page of HTML", "garbage", "half JSON", "null", "numbers", "lists in lists", "objects in objects"],
)
def test_what_is_no_list_is_not_an_empty_one(action: str, name: str) -> None:
    router, found = acted("sglang-router", action, "the first read", ANSWERS[name])
    assert (found.result, found.problem, router.writes) == (Result.FAILED, "no_list", [])


@pytest.mark.parametrize("name", ["null", "numbers", "a page of HTML", "always 200 {}"])
def test_what_is_no_worker_shows_no_change(name: str) -> None:
    _, found = acted("smg", "change what is hidden", "reads after it", ANSWERS[name])
    assert found.result is Result.ACCEPTED_NOT_APPLIED


@pytest.mark.parametrize("engine", ["sglang-router", "smg"])
@pytest.mark.parametrize(("heard", "result"), [(True, Result.DONE), (False, Result.ACCEPTED_NOT_APPLIED)])
def test_ids_that_are_others_at_every_read(engine: str, heard: bool, result: Result) -> None:
    """Found by its address: whatever the id, it is out only when the address is."""
    router = ModelRouter(engine)
    router.put(URL)

    def answering(method: str, path: str, body: Any) -> Answer | None:
        if method == "DELETE":
            if heard:
                router.vanish(URL)
            return reply(202, {"status": "accepted"})
        for number, worker in enumerate(router.workers.values()):
            worker["id"] = f"other-{len(router.seen)}-{number}"
        return None

    router.answering = answering
    assert run(router.control().remove("id-1", URL)).result is result
    assert router.writes == ["DELETE /workers/other-1-0"]


@pytest.mark.parametrize("engine", ["sglang-router", "smg"])
def test_listed_twice_is_taken_out_twice(engine: str) -> None:
    router = ModelRouter(engine)
    for url in (URL, f"{URL}/"):
        router.put(url)
    control = router.control()
    for url in (f"{URL}/", URL):
        assert run(control.remove("", url)).result is Result.DONE
    assert router.writes == ["DELETE /workers/id-2", "DELETE /workers/id-1"]
