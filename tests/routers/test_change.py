"""Changing a worker: the right method is found, and done is said only after a read showed it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from pdtop.cluster.model import State
from pdtop.cluster.readings import Answer
from pdtop.routers.change import Changed, Result, change_worker, shows
from tests.cluster.virtual_time import run

ACCEPTED = Answer(0.0, 0.0, 202)


@dataclass
class Router:
    """Takes one method, applies it later (None: never); everything else is refused as given."""

    method: str
    applies_after_s: float | None = 0.4
    refusals: Mapping[str, Answer] = field(default_factory=dict)
    job: Mapping[str, object] | None = None
    worker: dict[str, Any] = field(default_factory=lambda: {"id": "w1", "priority": 50})
    seen: list[str] = field(default_factory=list)

    async def ask(self, method: str, path: str, content: bytes | None) -> Answer:
        self.seen.append(method)
        assert path == "/workers/w1"
        if method == "GET":
            shown = {**self.worker, "job_status": self.job} if self.job else self.worker
            return Answer(0.0, 0.0, 200, body=json.dumps(shown).encode())
        if method != self.method:
            return self.refusals.get(method, Answer(0.0, 0.0, 405))
        assert content is not None
        if self.applies_after_s is not None:
            later = asyncio.get_running_loop().call_later
            later(self.applies_after_s, self.worker.update, json.loads(content))
        return ACCEPTED


def changed(
    router: Router, fields: Mapping[str, object], methods: Iterable[str] = ("PATCH", "PUT")
) -> Changed:
    return run(change_worker(router.ask, "w1", fields, methods=tuple(methods)))


def test_put_where_patch_does_not_exist() -> None:
    router = Router("PUT")
    found = changed(router, {"priority": 10})
    assert (found.result, found.method) == (Result.DONE, "PUT")
    assert router.seen == ["PATCH", "PUT", "GET", "GET", "GET"]


def test_a_partial_put_is_never_tried_where_patch_works() -> None:
    router = Router("PATCH")
    found = changed(router, {"priority": 10})
    assert (found.result, found.method) == (Result.DONE, "PATCH")
    assert "PUT" not in router.seen


def test_a_put_that_wants_the_whole_worker() -> None:
    refusal = Answer(0.0, 0.0, 400, body=b'{"error":"Invalid JSON data: missing field `url`"}')
    router = Router("PATCH", refusals={"PUT": refusal})
    assert changed(router, {"priority": 10}, ("PUT", "PATCH")).method == "PATCH"


def test_a_bad_value_is_not_tried_with_another_method() -> None:
    refusal = Answer(0.0, 0.0, 400, body=b'{"error":"cost must be > 0"}')
    router = Router("PUT", refusals={"PATCH": refusal})
    found = changed(router, {"cost": -1})
    assert (found.result, found.method, found.status) == (Result.FAILED, None, 400)
    assert "cost must be > 0" in found.words
    assert router.seen == ["PATCH"]


@pytest.mark.parametrize("applies_after_s", [None, 60.0])
def test_accepted_is_not_done(applies_after_s: float | None) -> None:
    found = changed(Router("PUT", applies_after_s), {"priority": 10})
    assert found.result is Result.ACCEPTED_NOT_APPLIED
    assert "202" in found.words


def test_the_router_s_job_failed() -> None:
    job = {"status": "failed", "message": "Workflow failed at step update"}
    found = changed(Router("PUT", None, job=job), {"priority": 10})
    assert (found.result, found.words) == (Result.FAILED, "Workflow failed at step update")


@pytest.mark.parametrize(("applied", "result"), [(True, Result.DONE), (False, Result.FAILED)])
def test_no_answer_may_still_have_been_heard(applied: bool, result: Result) -> None:
    lost = Answer(0.0, 2.0, failure=State.TIMEOUT, detail="no complete answer within 2 s")
    router = Router("PUT", refusals={"PATCH": lost})
    if applied:
        router.worker["priority"] = 10
    found = changed(router, {"priority": 10})
    assert found.result is result
    assert "PUT" not in router.seen


@pytest.mark.parametrize(
    ("worker", "fields", "expected"),
    [
        ({"priority": 10}, {"priority": 10}, True),
        ({"priority": 10}, {"priority": 11}, False),
        ({"cost": 1}, {"cost": 1.0}, True),
        ({"disable_health_check": 1}, {"disable_health_check": True}, False),
        ({}, {"priority": 10}, False),
        ({"labels": {"a": "1", "b": "2"}}, {"labels": {"a": "1"}}, True),
        ({"metadata": {"a": "1"}}, {"labels": {"a": "1"}}, True),
        ({"metadata": {"a": "1"}}, {"labels": {"a": "2"}}, False),
        ({"health": {"timeout_secs": 3, "x": 1}}, {"health": {"timeout_secs": 3}}, True),
        ({"health": None}, {"health": {"timeout_secs": 3}}, False),
    ],
)
def test_what_a_read_shows(worker: dict[str, object], fields: dict[str, object], expected: bool) -> None:
    assert shows(worker, fields) is expected
