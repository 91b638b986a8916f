"""Whole operations at a router in whose place something else answers: they end in words and harm nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pdtop.cluster.model import Role
from pdtop.operations.model import (
    AddWorker,
    Apply,
    Drain,
    Operation,
    Outcome,
    Phase,
    RemoveWorker,
    Request,
    Undrain,
)
from tests.cluster.stub_server import Reply
from tests.cluster.stub_server import Request as Asked
from tests.operations.plant import Console, Plant, StubRouter, plant, virtual

NASTY = "\x1b[2J\x1b]0;x\x07\u202e\r\nX: y [bold]z[/bold]"
JSON = {"content-type": "application/json"}
PATH = re.compile(r"/[A-Za-z0-9_]*\Z|/workers/[A-Za-z0-9][A-Za-z0-9._-]*\Z")


def as_json(body: object, status: int = 200) -> Reply:
    return Reply(status, JSON, json.dumps(body).encode())


def entries(**more: object) -> Reply:
    urls = [f"http://127.1.{number // 200}.{number % 200 + 1}:1" for number in range(1_000)]
    return as_json({"workers": [{"id": f"x{n}", "url": url} | more for n, url in enumerate(urls)]})


ANSWERS: dict[str, Reply] = {
    "a page of HTML": Reply(200, {"content-type": "text/html"}, f"<html>{NASTY}".encode()),
    "garbage": Reply(200, JSON, bytes(range(256)) * 9),
    "no HTTP": Reply(raw=b"\x00\xff" + NASTY.encode() + b"\r\n\r\n"),
    "half JSON": Reply(200, JSON, b'{"workers": [{"url": "http://10.'),
    "wrong types": as_json({"workers": [1, None, {"url": 3}], "worker_id": {}, "error": [NASTY]}),
    "lists in lists": Reply(200, JSON, b"[" * 100_000),
    "a thousand others": entries(),
    "ids that climb": entries(id="../../flush_cache"),
    "lines in ids": as_json({"workers": [{"id": NASTY, "url": f"http://{NASTY}/"}], "worker_id": NASTY}),
    "a redirect": Reply(307, {"location": "http://127.0.0.2:9/workers?k=\x1b[2J"}),
    "a circle": Reply(302, {"location": "/workers"}),
    "drips": Reply(200, JSON, b'{"workers": []}', drip=(15, 60.0)),
    "hangs": Reply(hang=True),
    "a gigabyte": Reply(200, JSON, b'{"workers": [', announce=2**30),
    "cut off": Reply(200, JSON, b'{"workers": [', announce=400, close=True),
    "always 200": as_json({}),
    "always 201": Reply(201),
    "always 204": Reply(204),
    **{
        f"always {status}": as_json({"error": NASTY}, status)
        for status in (400, 404, 409, 429, 500, 502, 503)
    },
}
STEPS = ("everything", "the write", "after the write")


def answers(router: StubRouter, step: str, reply: Reply) -> None:
    well, written = router.answer, [False]

    async def answer(request: Asked) -> Reply:
        write = request.method != "GET"
        now = {"everything": True, "the write": write, "after the write": written[0] and not write}
        written[0] = written[0] or write
        return reply if now[step] else await well(request)

    router.answer = answer  # type: ignore[method-assign]


def harmless(cluster: Plant, console: Console, operation: Operation) -> None:
    told = [operation.words, operation.next_step, *(one.words + one.fix for one in operation.routers)]
    told += [call.words + call.path for one in operation.routers for call in one.calls]
    for entry in console.log:
        told += [entry.words, entry.target, *(call.words + call.path for call in entry.calls)]
    assert all(words.isprintable() for words in told), told
    assert not any("internal error" in words for words in told), told
    (log,) = (cluster.folder / "state" / "clusters").glob("*/audit*")
    kept = log.read_bytes()
    assert not {b"\x1b", b"\x07", b"\r"} & {kept[at : at + 1] for at in range(len(kept))}
    asked = {request.path for router in cluster.routers for request in router.server.requests}
    assert [path for path in asked if not PATH.match(path)] == []


REQUESTS: dict[str, Callable[[Plant], Request]] = {
    "drain": lambda cluster: Drain((cluster.decode[0].key,)),
    "undrain": lambda cluster: Undrain((cluster.decode[1].key,)),
    "apply": lambda cluster: Apply(),
    "add": lambda cluster: AddWorker(Role.DECODE, "127.0.0.1:9"),
    "remove": lambda cluster: RemoveWorker(cluster.decode[2].key),
}


#: Each answer with one step of one verb, so that in turn all meet.
CASES = [
    (name, STEPS[(number + shift) % 3], list(REQUESTS)[(number + 2 * shift) % 5])
    for number, name in enumerate(ANSWERS)
    for shift in range(2)
]


@pytest.mark.parametrize(("name", "step", "verb"), CASES)
@virtual
async def test_it_ends_in_words(tmp_path: Path, name: str, step: str, verb: str) -> None:
    async with plant(tmp_path, decode=4) as cluster, cluster.console() as console:
        router = cluster.routers[0]
        if verb == "undrain":
            await console.ended(await console.do(Drain((cluster.decode[1].key,))))
        if verb == "apply":
            router.model.vanish(cluster.decode[0].url)
        before = cluster.text
        plan = await console.plan(REQUESTS[verb](cluster))
        answers(router, step, ANSWERS[name])
        typed = [guard.override for guard in plan.guards if guard.override]
        operation = await console.settled(console.operator.start(plan, typed=tuple(typed)))
        harmless(cluster, console, operation)
        assert operation.phase in (Phase.ENDED, Phase.DRAINING)
        if operation.phase is Phase.ENDED and operation.outcome is not Outcome.DONE:
            assert operation.words
            assert operation.next_step, operation
        if operation.outcome is Outcome.REFUSED:
            assert cluster.text == before
