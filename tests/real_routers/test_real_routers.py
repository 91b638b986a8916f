"""The published routers over simulated workers: accepted, served, and pdtop's numbers of it are true."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdtop.cluster.launch import find, start
from pdtop.cluster.monitor import Monitor
from tests.real_routers.launcher import EACH_ENGINE, Engine, Launched, launched
from tests.simulator.comparison import check_finished, has_seen, key, truth
from tests.simulator.support import DECODE, PREFILL, Answer, client, eventually, get, post, workers

pytestmark = EACH_ENGINE

CHAT: dict[str, Any] = {
    "model": "demo-llama-70b",
    "messages": [{"role": "user", "content": "x" * 4000}],
    "max_tokens": 60,
}


async def test_simulated_workers_are_accepted_and_served(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        launched(engine, running, tmp_path / "log") as router,
        client() as session,
    ):
        listed = (await get(session, router.url + "/workers")).json["workers"]
        found = {(w["url"], w["worker_type"], w["is_healthy"]) for w in listed}
        assert found == {(w.url, w.spec.role, True) for w in running}
        prefill = next(w for w in listed if w["worker_type"] == "prefill")
        assert prefill["bootstrap_port"] == running[0].bootstrap_port
        assert prefill["model_id"] == "demo-llama-70b"
        generate = {"text": "x" * 400, "sampling_params": {"max_new_tokens": 60}}
        served = 0
        for path, body in (("/v1/chat/completions", CHAT), ("/generate", generate)):
            for stream in (False, True):
                answer = await post(session, router.url + path, {**body, "stream": stream})
                served += 1
                assert answer.status == 200
                assert len(text_of(answer, stream).split()) == 60
                assert not stream or answer.events[-1] == "[DONE]"
                counts = [(await truth(session, w))["counts"]["finished"] for w in running]
                assert counts == [served, served]


async def test_numbers_after_a_load_are_what_the_workers_did(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, PREFILL, DECODE, DECODE, replace(DECODE, dp=2)) as running,
        launched(engine, running, tmp_path / "log") as router,
        client() as session,
    ):
        monitor = await watched(router)
        try:
            calls = [
                post(session, router.url + "/v1/chat/completions", {**CHAT, "stream": i % 3 > 0})
                for i in range(24)
            ]
            answers = await asyncio.gather(*calls)
            assert [a.status for a in answers] == [200] * 24
            facts = [await truth(session, w) for w in running]
            await eventually(lambda: has_seen(monitor.latest(), 24))
            check_finished(monitor.latest(), engine.name, running, facts)
        finally:
            await asyncio.to_thread(monitor.stop)


async def test_numbers_in_the_middle_of_a_load_are_what_the_workers_do(
    engine: Engine, tmp_path: Path
) -> None:
    slow = replace(DECODE, decode=replace(DECODE.decode, step_s=0.02))
    async with (
        workers(PREFILL, slow, slow) as running,
        launched(engine, running, tmp_path / "log") as router,
        client() as session,
    ):
        monitor = await watched(router)
        body = {**CHAT, "stream": True, "max_tokens": 3000}
        calls = [
            asyncio.create_task(post(session, router.url + "/v1/chat/completions", body)) for _ in range(6)
        ]
        try:
            await eventually(lambda: monitor.latest().decode.running == 6)
            await eventually(lambda: monitor.latest().prefill.backlog.total == 0)
            facts = [await truth(session, w) for w in running]
            snapshot = monitor.latest()
            for worker, fact in zip(running, facts, strict=True):
                shown = snapshot.worker(key(worker))
                assert shown is not None
                assert shown.backlog.total == 0
                if worker.spec.role == "decode":
                    assert shown.running == sum(rank["running"] for rank in fact["ranks"])
            usable = (snapshot.prefill.usable, snapshot.decode.usable)
            assert usable == (1, 2)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await asyncio.to_thread(monitor.stop)


async def watched(router: Launched) -> Monitor:
    """A monitor that has read everything once, before any request."""
    watch = find([router.url], [], [], router.metrics_url)
    monitor = start(watch, interval_s=0.2, window_s=60.0)
    assert await asyncio.to_thread(monitor.wait_first_round, 10.0)
    return monitor


def text_of(answer: Answer, stream: bool) -> str:
    """The generated text of a chat or ``/generate`` answer."""
    if stream:
        parts = [e for e in answer.events if e != "[DONE]"]
        if "text" in parts[0]:
            return str(parts[-1]["text"])
        return "".join(p["choices"][0]["delta"].get("content") or "" for p in parts if p["choices"])
    body = answer.json
    return str(body["text"] if "text" in body else body["choices"][0]["message"]["content"])
