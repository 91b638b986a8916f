"""Adding, removing and changing workers at a router: only what was read back counts as done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pdtop.cluster.model import Role, State
from pdtop.cluster.readings import Answer
from pdtop.routers.change import Result
from pdtop.routers.control import (
    Control,
    Controlled,
    RawWorker,
    WorkerSpec,
    spec_from_dict,
    spec_of,
    spec_to_dict,
)
from pdtop.routers.detect import DIALECTS
from tests.cluster.virtual_time import run
from tests.routers.model_router import Answering, ModelRouter, done, reply

T = TypeVar("T")
URL = "http://10.0.2.21:30001"
P_URL = "http://10.0.1.11:30001"
DECODE = WorkerSpec(URL, Role.DECODE)
PREFILL = WorkerSpec(P_URL, Role.PREFILL, 8998)
KEY = "sk-worker-secret-0123456789"
LOST = Answer(0.0, 5.0, failure=State.TIMEOUT, detail="no complete answer within 5 s")
both = pytest.mark.parametrize("engine", ["sglang-router", "smg"])


def add(router: ModelRouter, spec: WorkerSpec = DECODE, api_key: str | None = None) -> Controlled:
    return run(router.control().add(spec, api_key=api_key))


def remove(router: ModelRouter, url: str = URL, worker_id: str = "id-1") -> Controlled:
    return run(router.control().remove(worker_id, url))


def timed(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """The result, and how long it took in virtual seconds."""

    async def main() -> tuple[T, float]:
        began = asyncio.get_running_loop().time()
        found = await work
        return found, asyncio.get_running_loop().time() - began

    return run(main())


def once(method: str, act: Callable[[Any], object]) -> Answering:
    """Act just before the router gets its first request of this method; its body may be changed."""
    acted: list[object] = []

    def answering(asked: str, path: str, body: Any) -> None:
        if asked == method and not acted:
            acted.append(act(body))

    return answering


# Adding.


@both
@pytest.mark.parametrize("spec", [DECODE, PREFILL])
def test_added_when_it_is_shown_healthy(engine: str, spec: WorkerSpec) -> None:
    router = ModelRouter(engine)
    found = add(router, spec)
    assert (found.result, found.worker_id, found.problem) == (Result.DONE, "id-1", "")
    assert found.words == "accepted (202); the router calls it healthy"
    assert router.writes == ["POST /workers"]
    assert router.bodies[0]["worker_type"] == spec.role.value
    assert router.bodies[0].get("bootstrap_port") == spec.bootstrap_port


@both
@pytest.mark.parametrize("written", [URL + "/", "10.0.2.21:30001", "HTTP://10.0.2.21:30001/metrics"])
def test_every_spelling_of_an_address_is_one_worker(engine: str, written: str) -> None:
    router = ModelRouter(engine)
    router.put(URL)
    assert done(add(router, replace(DECODE, url=written)))
    assert router.writes == []
    empty = ModelRouter(engine)
    assert done(add(empty, replace(DECODE, url=written)))
    assert empty.bodies[0]["url"] == URL


def test_localhost_is_not_added_beside_its_number() -> None:
    router = ModelRouter("smg")
    router.put("http://127.0.0.1:30001")
    assert done(add(router, replace(DECODE, url="http://localhost:30001")))
    assert router.writes == []


@both
def test_there_already_but_as_something_else(engine: str) -> None:
    router = ModelRouter(engine)
    router.put(URL, "regular")
    found = add(router)
    assert (found.result, found.problem) == (Result.FAILED, "mismatch")
    assert "listed as unified, not as decode" in found.words
    assert "take it out" in found.fix
    assert router.writes == []


def test_registered_otherwise_than_asked() -> None:
    router = ModelRouter("sglang-router")
    router.answering = once("POST", lambda body: body.update(worker_type="regular"))
    found = add(router)
    assert found.problem == "mismatch"
    other = ModelRouter("sglang-router")
    other.answering = once("POST", lambda body: body.update(bootstrap_port=1))
    found = add(other, PREFILL)
    assert "bootstrap port there is 1, not 8998" in found.words


@both
def test_a_worker_that_cannot_be_reached_is_accepted_not_applied(engine: str) -> None:
    router = ModelRouter(engine, dead={URL})
    found, seconds = timed(router.control().add(DECODE, api_key=None))
    assert found.result is Result.ACCEPTED_NOT_APPLIED
    assert 9.5 < seconds <= 10.5
    assert "still tries to reach the worker" in found.words
    assert "10.0.2.21:30001 answers /health" in found.fix
    assert "api_key_env" in found.fix
    assert "api_key_env" not in add(ModelRouter(engine, dead={URL}), api_key=KEY).fix


def test_the_job_failed() -> None:
    router = ModelRouter("sglang-router", dead={URL})

    def give_up(method: str, path: str, body: Any) -> None:
        if method == "GET" and URL in router.jobs and router.at[-1] > 1002:
            router.jobs[URL] |= {"status": "failed", "message": "Workflow failed at detect_connection_mode"}

    router.answering = give_up
    found = add(router)
    assert (found.result, found.problem) == (Result.FAILED, "job")
    assert "detect_connection_mode" in found.words


def test_an_old_job_of_another_kind_says_nothing() -> None:
    router = ModelRouter("sglang-router", dead={URL})
    failed = {"job_type": "RemoveWorker", "status": "failed", "message": "not found"}

    def still_there(method: str, path: str, body: Any) -> None:
        if method == "GET":
            router.jobs[URL] = failed

    router.answering = still_there
    assert add(router).result is Result.ACCEPTED_NOT_APPLIED


def test_somebody_else_added_it_at_the_same_time() -> None:
    router = ModelRouter("sglang-router")
    router.answering = once("POST", lambda body: router.put(URL))
    assert done(add(router))  # the job fails with "already exists", and the worker is there
    other = ModelRouter("smg")
    other.answering = once("POST", lambda body: other.put(URL))
    found = add(other)
    assert done(found)
    assert found.words == "it is there already; the router calls it healthy"


@both
def test_added_though_the_answer_was_lost(engine: str) -> None:
    router = ModelRouter(engine)

    def heard(method: str, path: str, body: Any) -> Answer | None:
        if method != "POST":
            return None
        router.answer(method, path, body)
        return LOST

    router.answering = heard
    found = add(router)
    assert done(found)
    assert "no complete answer within 5 s; the router calls it healthy" in found.words


@both
@pytest.mark.parametrize("lost", [LOST, reply(504, b"<html>504</html>")])
def test_not_heard_at_all(engine: str, lost: Answer) -> None:
    router = ModelRouter(engine, answering=lambda method, path, body: lost if method == "POST" else None)
    found = add(router)
    assert (found.result, found.problem) == (Result.FAILED, "timed_out")
    assert "no read shows the worker" in found.words
    assert router.writes == ["POST /workers"]


@both
def test_added_again_after_a_removal(engine: str) -> None:
    router = ModelRouter(engine)
    router.put(URL)
    control = router.control()

    async def both_ways() -> tuple[Controlled, Controlled]:
        return await control.remove("id-1", URL), await control.add(DECODE, api_key=None)

    (out, back), seconds = timed(both_ways())
    assert done(out)
    assert done(back)
    assert URL in router.workers
    assert router.writes == ["DELETE /workers/id-1", "POST /workers"]
    assert seconds >= 5.0 if engine == "smg" else seconds < 1.5


def test_smg_s_delayed_removal_takes_the_new_worker_and_it_is_added_again() -> None:
    """A second removal by somebody else ends the draining early; the first one stays due."""
    router = ModelRouter("smg")
    router.put(URL)
    control = router.control()

    async def story() -> Controlled:
        await control.remove("id-1", URL)
        await asyncio.sleep(2)
        router.answer("DELETE", "/workers/id-1", None)
        assert URL not in router.workers
        found = await control.add(DECODE, api_key=None)
        await asyncio.sleep(10)
        return found

    assert done(run(story()))
    assert router.writes == ["DELETE /workers/id-1", "POST /workers", "POST /workers"]
    assert URL in router.workers


def test_smg_s_409_of_a_draining_worker_is_waited_out() -> None:
    router = ModelRouter("smg")

    def drain_meanwhile(body: Any) -> None:
        router.put(URL)
        router.answer("DELETE", "/workers/id-1", None)

    router.answering = once("POST", drain_meanwhile)
    found = add(router)
    assert done(found)
    assert [call.status for call in found.calls if call.method == "POST"] == [409, 202]


def test_it_drains_for_ever() -> None:
    router = ModelRouter("smg")
    router.put(URL, status="draining", is_healthy=False)
    found = add(router)
    assert (found.result, found.problem) == (Result.FAILED, "timed_out")
    assert "still drains" in found.words
    assert router.writes == []


def test_what_is_sent() -> None:
    spec = WorkerSpec(
        P_URL,
        Role.PREFILL,
        8998,
        labels={"zone": "a"},
        priority=60,
        cost=2.0,
        health={"timeout_secs": 3, "disable_health_check": 1},
    )
    router = ModelRouter("smg")
    add(router, spec, KEY)
    assert router.bodies == [
        {
            "url": P_URL,
            "worker_type": "prefill",
            "bootstrap_port": 8998,
            "priority": 60,
            "cost": 2.0,
            "labels": {"zone": "a"},
            "api_key": KEY,
            "health": {"timeout_secs": 3, "disable_health_check": True},
        }
    ]
    older = ModelRouter("sglang-router")
    add(older, spec)
    assert older.bodies[0]["disable_health_check"] is True
    assert "health" not in older.bodies[0]
    assert "api_key" not in older.bodies[0]


@both
def test_the_key_is_in_no_word(engine: str) -> None:
    """Not even if the router quotes the body."""
    quoting = reply(400, {"error": f"bad key {KEY}"})
    router = ModelRouter(engine, answering=lambda method, path, body: quoting if body else None)
    for found in (add(router, api_key=KEY), add(ModelRouter(engine), api_key=KEY)):
        assert KEY not in repr(found)
    assert "bad key ••••••" in add(router, api_key=KEY).words


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (replace(DECODE, role=Role.UNKNOWN), "its role is not known"),
        (replace(DECODE, url="http://a b"), "holds a space"),
    ],
)
def test_nothing_is_asked_for_a_spec_that_says_too_little(spec: WorkerSpec, words: str) -> None:
    router = ModelRouter("smg")
    found = add(router, spec)
    assert found.result is Result.FAILED
    assert words in found.words
    assert router.seen == []


# Removing.


@both
def test_removed_when_no_new_work_can_reach_it(engine: str) -> None:
    router = ModelRouter(engine)
    router.put(URL)
    found = remove(router)
    assert done(found)
    assert router.writes == ["DELETE /workers/id-1"]
    assert ("draining" in found.words) is (engine == "smg")


@both
def test_not_there_is_done(engine: str) -> None:
    router = ModelRouter(engine)
    router.put(P_URL, "prefill")
    found = remove(router)
    assert done(found)
    assert "not in the router's list" in found.words
    assert router.writes == []


def test_never_a_second_removal() -> None:
    router = ModelRouter("smg")
    router.put(URL, status="draining", is_healthy=False)
    assert done(remove(router))
    assert router.writes == []


@both
def test_the_id_of_the_list_counts(engine: str) -> None:
    router = ModelRouter(engine)
    router.put(URL)
    assert done(remove(router, worker_id="an-older-id"))
    assert router.writes == ["DELETE /workers/id-1"]


@both
def test_the_id_changed_between_list_and_removal(engine: str) -> None:
    router = ModelRouter(engine)
    router.put(URL)

    def restart(body: Any) -> None:
        router.vanish(URL)
        router.put(URL)

    router.answering = once("DELETE", restart)
    assert done(remove(router))
    assert router.writes == ["DELETE /workers/id-1", "DELETE /workers/id-2"]


@both
def test_an_id_that_the_router_does_not_know(engine: str) -> None:
    router = ModelRouter(engine)
    router.put(URL, id="strange")
    found = remove(router)
    assert (found.result, found.problem) == (Result.FAILED, "refused")
    assert router.writes == ["DELETE /workers/strange"] * 2


@pytest.mark.parametrize("hostile", ["../flush_cache", "a/b", "", "x?y", "z" * 200, "a b"])
def test_an_id_is_never_a_path(hostile: str) -> None:
    router = ModelRouter("smg")
    router.put(URL, id=hostile)
    found = remove(router, worker_id=hostile)
    assert (found.result, router.writes) == (Result.FAILED, [])


@both
@pytest.mark.parametrize(("heard", "result"), [(True, Result.DONE), (False, Result.FAILED)])
def test_no_answer_to_the_removal(engine: str, heard: bool, result: Result) -> None:
    router = ModelRouter(engine)
    router.put(URL)

    def lose(method: str, path: str, body: Any) -> Answer | None:
        if method != "DELETE":
            return None
        if heard:
            router.answer(method, path, body)
        return LOST

    router.answering = lose
    found = remove(router)
    assert found.result is result
    assert router.writes == ["DELETE /workers/id-1"]


def test_taken_but_still_listed() -> None:
    taken = reply(202, {"status": "accepted"})
    router = ModelRouter("sglang-router")
    router.put(URL)
    router.answering = lambda method, path, body: taken if method == "DELETE" else None
    assert remove(router).result is Result.ACCEPTED_NOT_APPLIED
    router.jobs[URL] = {"job_type": "RemoveWorker", "status": "failed", "message": "Workflow failed"}
    found = remove(router)
    assert (found.result, found.problem) == (Result.FAILED, "job")
    assert "Workflow failed" in found.words


def test_the_list_fails_after_the_removal() -> None:
    router = ModelRouter("sglang-router")
    router.put(URL)
    refused = Answer(0.0, 0.0, failure=State.REFUSED, detail="the connection was refused")
    router.answering = lambda method, path, body: refused if router.writes and method == "GET" else None
    found = remove(router)
    assert (found.result, found.problem) == (Result.ACCEPTED_NOT_APPLIED, "unreachable")
    assert "removal sent, but" in found.words


def test_ranks_of_one_worker_are_taken_out_one_by_one() -> None:
    router = ModelRouter("sglang-router")
    for rank in (0, 1):
        router.put(f"{URL}@{rank}")
    assert done(remove(router, f"{URL}@1", "id-2"))
    assert list(router.workers) == [f"{URL}@0"]


# What stands in the way.


@both
@pytest.mark.parametrize(
    ("refusal", "fix"),
    [
        (reply(401), "--api-key) in $PDTOP_ADMIN_KEY, or in $PDTOP_API_KEY"),
        (
            reply(401, b"Invalid token", www_authenticate='Bearer realm="control-plane"'),
            "--control-plane-api-keys) in $PDTOP_ADMIN_KEY",
        ),
        (reply(403, b"Admin role required"), "role admin in $PDTOP_ADMIN_KEY"),
    ],
)
def test_a_wrong_key(engine: str, refusal: Answer, fix: str) -> None:
    router = ModelRouter(engine, answering=lambda method, path, body: refusal)
    for found in (add(router, api_key=KEY), remove(router)):
        assert (found.result, found.problem) == (Result.FAILED, "auth")
        assert str(refusal.status) in found.words
        assert fix in found.fix
    assert router.writes == []


def test_a_key_that_may_read_but_not_write() -> None:
    refusal = reply(403, b"Admin role required", content_type="text/plain")
    router = ModelRouter("smg", answering=lambda m, path, body: None if m == "GET" else refusal)
    router.put(P_URL, "prefill")
    control = router.control()
    for found in (
        run(control.add(DECODE, api_key=None)),
        run(control.remove("id-1", P_URL)),
        run(control.change("id-1", {"priority": 1})),
    ):
        assert (found.result, found.problem) == (Result.FAILED, "auth")
        assert "403 Admin role required" in found.words
    assert P_URL in router.workers


@both
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (reply(200, b"<html>login</html>"), "no_list"),
        (reply(200, b"\xff\x00"), "no_list"),
        (reply(200, {"workers": "none"}), "no_list"),
        (reply(500, {"error": {"message": "oops"}}), "refused"),
        (reply(404), "refused"),
        (Answer(0.0, 0.0, 302, failure=State.REDIRECT, detail="302 to http://x; not followed"), "refused"),
        (Answer(0.0, 0.0, failure=State.REFUSED, detail="nothing listens"), "unreachable"),
        (Answer(0.0, 0.0, failure=State.TLS, detail="certificate"), "unreachable"),
        (Answer(0.0, 0.0, 200, body=b'{"workers": [', failure=State.PARTIAL), "unreachable"),
        (LOST, "timed_out"),
    ],
)
def test_no_list_no_action(engine: str, answer: Answer, problem: str) -> None:
    router = ModelRouter(engine, answering=lambda method, path, body: answer)
    control = router.control()
    for found in (
        run(control.list()),
        run(control.add(DECODE, api_key=None)),
        run(control.remove("id-1", URL)),
    ):
        assert isinstance(found, Controlled)
        assert (found.result, found.problem) == (Result.FAILED, problem)
        assert found.fix
    assert router.writes == []


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (reply(404), "no_power"),
        (reply(405), "no_power"),
        (reply(400, {"error": "worker_type: unknown variant"}), "refused"),
        (reply(422, b"missing field", content_type="text/plain; charset=utf-8"), "refused"),
        (Answer(0.0, 0.0, 307, failure=State.REDIRECT, detail="307; not followed"), "refused"),
    ],
)
def test_the_addition_is_refused(answer: Answer, problem: str) -> None:
    router = ModelRouter("smg", answering=lambda method, path, body: answer if method == "POST" else None)
    found = add(router)
    assert (found.result, found.problem) == (Result.FAILED, problem)
    assert router.writes == ["POST /workers"]


@pytest.mark.parametrize("engine", ["sgl-router", "vllm-router", "unknown"])
def test_routers_that_cannot_do_it_are_not_asked(engine: str) -> None:
    router = ModelRouter(engine)
    control = router.control()
    for found in (
        run(control.add(DECODE, api_key=None)),
        run(control.remove("id-1", URL)),
        run(control.change("id-1", {"priority": 1})),
    ):
        assert (found.result, found.problem) == (Result.FAILED, "no_power")
        assert ("engine in [server]" in found.fix) is (engine == "unknown")
    assert router.seen == []


# Changing.


def test_a_change_is_read_back() -> None:
    router = ModelRouter("smg")
    router.put(URL)
    found = run(router.control().change("id-1", {"priority": 10}))
    assert (found.result, found.words) == (Result.DONE, "read back")
    assert router.writes == ["PATCH /workers/id-1"]


def test_sglang_router_forgets_its_load_at_a_change() -> None:
    router = ModelRouter("sglang-router")
    router.put(URL)
    found = run(router.control().change("id-1", {"priority": 10}))
    assert done(found)
    assert "counts its running requests from 0" in found.words
    assert router.writes == ["PUT /workers/id-1"]


def test_health_settings() -> None:
    """smg takes them and shows them nowhere; sglang-router takes them and does nothing."""
    fields = {"health": {"check_interval_secs": 5}}
    router = ModelRouter("smg")
    router.put(URL)
    found = run(router.control().change("id-1", fields))
    assert (found.result, found.words) == (Result.DONE, "taken; this router does not show the value")
    older = ModelRouter("sglang-router")
    older.put(URL)
    found = run(older.control().change("id-1", fields))
    assert (found.result, found.problem, older.seen) == (Result.FAILED, "no_power", [])


def test_health_settings_that_may_not_have_been_heard_are_not_done() -> None:
    router = ModelRouter("smg", answering=lambda method, path, body: LOST if method == "PATCH" else None)
    router.put(URL)
    found = run(router.control().change("id-1", {"health": {"timeout_secs": 1}}))
    assert (found.result, found.problem) == (Result.FAILED, "timed_out")


def test_a_change_of_a_worker_that_is_gone() -> None:
    found = run(ModelRouter("smg").control().change("id-1", {"priority": 10}))
    assert found.result is Result.FAILED
    assert "404 Worker id-1 not found" in found.words


# pdtop's own router reads the file.


def test_a_router_that_reads_the_file_is_only_watched() -> None:
    router = ModelRouter("pdtop")
    router.put(URL, status="ready")
    control = Control(router.ask, DIALECTS["pdtop"], "R1", clock=lambda: asyncio.get_running_loop().time())

    async def story() -> list[Controlled]:
        later = asyncio.get_running_loop().call_later
        later(1.0, router.workers[URL].update, {"status": "draining"})
        out = await control.remove("id-1", URL)
        later(1.0, router.workers[URL].update, {"status": "ready"})
        back = await control.add(DECODE, api_key=KEY)
        never = await control.add(PREFILL, api_key=None)
        stays = await control.remove("id-1", URL)
        return [out, back, never, stays]

    results = run(story())
    late = Result.ACCEPTED_NOT_APPLIED
    assert [found.result for found in results] == [Result.DONE, Result.DONE, late, late]
    assert "does not list it" in results[2].words
    assert "last good one" in results[2].fix
    assert router.writes == []
    assert run(control.change("id-1", {"priority": 1})).problem == "no_power"


# The audit's lines, and specs.


def test_calls_for_the_audit_log() -> None:
    router = ModelRouter("sglang-router", dead={URL})
    found = add(router, api_key=KEY)
    assert [(call.router, call.method, call.path, call.status) for call in found.calls[:3]] == [
        ("R1", "GET", "/workers", 200),
        ("R1", "POST", "/workers", 202),
        ("R1", "GET", "/workers/id-1", 200),
    ]
    assert len(found.calls) == 3
    assert found.calls[2].words.startswith("read ")
    assert KEY not in repr(found.calls)


def test_the_list_with_specs() -> None:
    router = ModelRouter("smg")
    router.put(P_URL, "prefill", bootstrap_port=8998, priority=60, labels={"zone": "a", "version": "0.5.23"})
    router.put(URL, status="draining", is_healthy=False)
    workers = run(router.control().list())
    assert isinstance(workers, tuple)
    prefill, decode = workers
    assert isinstance(prefill, RawWorker)
    assert prefill.spec == WorkerSpec(P_URL, Role.PREFILL, 8998, {"zone": "a"}, 60)
    assert (prefill.draining, prefill.usable) == (False, True)
    assert (decode.draining, decode.usable, decode.worker_id, decode.url) == (True, False, "id-2", URL)


def test_old_lists_without_roles_have_no_specs() -> None:
    router = ModelRouter("sgl-router", answering=lambda m, path, body: reply(200, {"urls": [URL]}))
    workers = run(router.control().list())
    assert isinstance(workers, tuple)
    assert [(worker.url, worker.spec) for worker in workers] == [(URL, None)]


@pytest.mark.parametrize("capture", ["sglang-router-0.3.2", "smg-1.13.0"])
def test_specs_of_captured_lists(capture: str) -> None:
    path = Path(__file__).parent.parent / "fixtures" / "router" / f"{capture}-workers.json"
    specs = [spec_of(entry) for entry in json.loads(path.read_text())["workers"]]
    found = {(s.url, s.role, s.bootstrap_port, s.priority, s.cost) for s in specs if s is not None}
    assert len(found) == len(specs) == 7
    assert ("http://127.0.0.1:18101", Role.PREFILL, 18901, 50, 1.0) in found
    assert ("http://127.0.0.1:18201", Role.DECODE, None, 50, 1.0) in found
    assert all(spec is not None and not spec.labels and not spec.health for spec in specs)
    for spec in specs:
        assert spec is not None
        assert spec_from_dict(json.loads(json.dumps(spec_to_dict(spec)))) == spec


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"worker_type": "decode"}, None),
        ({"url": URL, "worker_type": "unknown"}, None),
        ({"url": URL, "worker_type": "regular"}, WorkerSpec(URL, Role.UNIFIED)),
        (
            {"url": URL, "worker_type": "decode", "priority": -5, "cost": -1, "bootstrap_port": 0},
            WorkerSpec(URL, Role.DECODE),
        ),
        (
            {"url": URL, "worker_type": "decode", "bootstrap_port": 70000, "priority": 2**32},
            WorkerSpec(URL, Role.DECODE),
        ),
        (
            {
                "url": URL,
                "worker_type": "decode",
                "metadata": {
                    "zone": "b",
                    "tp_size": "8",
                    "api_key": "x",
                    "note": "sk-0123456789",
                    "n": 1,
                    "esc": "a\x1b[0m",
                },
                "disable_health_check": True,
            },
            WorkerSpec(URL, Role.DECODE, labels={"zone": "b"}, health={"disable_health_check": 1}),
        ),
        (
            {
                "url": URL,
                "worker_type": "decode",
                "health": {"timeout_secs": 3, "drain_settle_secs": 12, "failure_threshold": "x", "y": 1},
            },
            WorkerSpec(URL, Role.DECODE, health={"timeout_secs": 3, "drain_settle_secs": 12}),
        ),
    ],
)
def test_spec_of_an_entry(entry: dict[str, object], expected: WorkerSpec | None) -> None:
    assert spec_of(entry) == expected


@pytest.mark.parametrize("damaged", [None, [], {}, {"url": URL}, {"url": URL, "role": "unknown"}, "x"])
def test_a_damaged_memory_is_no_spec(damaged: object) -> None:
    assert spec_from_dict(damaged) is None
