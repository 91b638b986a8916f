"""A simulated worker over HTTP: SGLang's endpoints, P/D pairing, streams, clients that leave, faults."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pdtop.simulator.identity import FAKE_API_KEY
from pdtop.simulator.spec import Fault, WorkerSpec
from tests.simulator.support import DECODE, PREFILL, both, client, get, post, until, workers

CHAT = {"model": "demo-llama-70b", "messages": [{"role": "user", "content": "x" * 4000}], "max_tokens": 9}
LOADS_TEXT = Path(__file__).parent.parent / "fixtures" / "worker" / "loads-0.5.23-decode-dp4.prometheus.txt"
PROMETHEUS_LOADS = {f.name for f in text_string_to_metric_families(LOADS_TEXT.read_text())}
GENERATE = {"text": "x" * 4000, "sampling_params": {"max_new_tokens": 9}}


async def test_a_plain_request_through_both_workers() -> None:
    async with workers(PREFILL, DECODE) as (p, d), client() as session:
        left, right = await both(session, p, d, "/generate", GENERATE)
    assert (left.status, right.status) == (200, 200)
    assert left.json["meta_info"]["completion_tokens"] == 1
    meta = right.json["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (1000, 9)
    assert meta["finish_reason"] == {"type": "length", "length": 9}
    assert len(right.json["text"].split()) == 9


async def test_a_chat_stream_has_its_tokens_its_usage_and_its_end() -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    async with workers(PREFILL, DECODE) as (p, d), client() as session:
        _, right = await both(session, p, d, "/v1/chat/completions", body)
    assert right.headers["Content-Type"].startswith("text/event-stream")
    *chunks, usage, done = right.events
    assert done == "[DONE]"
    assert usage["usage"] == {
        "prompt_tokens": 1004,
        "completion_tokens": 9,
        "total_tokens": 1013,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0]["role"] == "assistant"
    assert len("".join(d.get("content", "") for d in deltas).split()) == 9
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_the_prefix_cache_shows_in_the_usage() -> None:
    async with workers(PREFILL, DECODE) as (p, d), client() as session:
        await both(session, p, d, "/generate", GENERATE)
        _, again = await both(session, p, d, "/generate", GENERATE)
    assert again.json["meta_info"]["cached_tokens"] == 960


async def test_decode_may_ask_before_prefill_has_the_request() -> None:
    async with workers(PREFILL, DECODE) as (p, d), client() as session:
        body = {
            **GENERATE,
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": p.bootstrap_port,
            "bootstrap_room": 1,
        }
        right = asyncio.create_task(post(session, d.url + "/generate", body))
        await until(session, d, "transfer", 1)
        left = await post(session, p.url + "/generate", body)
        assert (left.status, (await right).status) == (200, 200)


async def test_the_bootstrap_server_says_who_it_is() -> None:
    async with workers(PREFILL) as (p,), client() as session:
        base = f"http://127.0.0.1:{p.bootstrap_port}"
        assert (await get(session, base + "/health")).body == b"OK"
        route = await get(session, base + "/route?prefill_dp_rank=-1&target_tp_rank=-1")
        assert route.json["dp_size"] == 1


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/generate", {"text": "x"}, "bootstrap room"),
        ("/generate", {"bootstrap_room": 1, "bootstrap_host": "h"}, "text or input_ids"),
        ("/v1/chat/completions", {"bootstrap_room": 1, "bootstrap_host": "h", "messages": []}, "messages"),
        ("/generate", [1], "JSON object"),
    ],
)
async def test_what_cannot_be_served_is_a_400_with_the_reason(path: str, body: Any, words: str) -> None:
    async with workers(DECODE) as (d,), client() as session:
        answer = await post(session, d.url + path, body)
    assert answer.status == 400
    assert words in answer.json["error"]["message"]


@pytest.mark.parametrize("stage", ["prealloc", "running"])
async def test_a_client_that_leaves_frees_both_workers(stage: str) -> None:
    decode = replace(DECODE, decode=replace(DECODE.decode, step_s=0.05, kv_tokens=3000))
    async with workers(PREFILL, decode) as (p, d), client() as session:
        wanted = {"prealloc": 2, "running": 1}[stage]
        calls = [
            asyncio.create_task(
                both(
                    session,
                    p,
                    d,
                    "/generate",
                    {"text": "x" * 4000, "sampling_params": {"max_new_tokens": 1500}, "bootstrap_room": room},
                )
            )
            for room in range(4 if stage == "prealloc" else 1)
        ]
        await until(session, d, stage, wanted)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for name in ("running", "prealloc", "transfer", "used_tokens"):
            await until(session, d, name, 0)
        for name in ("bootstrap", "inflight", "used_tokens"):
            await until(session, p, name, 0)


async def test_abort_request_ends_it() -> None:
    decode = replace(DECODE, decode=replace(DECODE.decode, step_s=0.05))
    async with workers(PREFILL, decode) as (p, d), client() as session:
        body = {"text": "x" * 40, "sampling_params": {"max_new_tokens": 1500}}
        call = asyncio.create_task(both(session, p, d, "/generate", body))
        await until(session, d, "running", 1)
        assert (await post(session, d.url + "/abort_request", {"abort_all": True})).status == 200
        _, right = await call
        assert right.status == 500
        assert right.json["error"]["message"] == "aborted"


async def test_lost_transfers_are_errors_at_both_workers() -> None:
    async with workers(PREFILL, DECODE) as (p, d), client() as session:
        await post(session, p.url + "/sim/fault", {"kind": "transfer_fail", "value": 1.0})
        left, right = await both(session, p, d, "/generate", GENERATE)
        assert (left.status, right.status) == (500, 500)
        assert "transfer" in right.json["error"]["message"].lower()
        page = (await get(session, d.url + "/metrics")).body.decode()
    assert "sglang:num_transfer_failed_reqs_total{" in page


async def test_a_hung_scheduler_looks_alive_by_http() -> None:
    async with workers(DECODE) as (d,), client() as session:
        before = (await get(session, d.url + "/v1/loads")).json["loads"][0]["timestamp"]
        await post(session, d.url + "/sim/fault", {"kind": "hang"})
        assert (await get(session, d.url + "/metrics")).status == 200
        assert (await get(session, d.url + "/ready")).status == 200
        assert (await get(session, d.url + "/health")).status == 503
        assert (await get(session, d.url + "/ready")).status == 503
        assert (await get(session, d.url + "/v1/loads")).json["loads"][0]["timestamp"] == before
        info = asyncio.create_task(get(session, d.url + "/server_info"))
        await post(session, d.url + "/sim/fault", {"kind": "resume"})
        assert (await info).status == 200
        assert (await get(session, d.url + "/health")).status == 200


async def test_metrics_in_every_form() -> None:
    async with workers(DECODE) as (d,), client() as session:
        plain = await get(session, d.url + "/metrics")
        packed = await get(session, d.url + "/metrics", Accept_Encoding="gzip")
        openmetrics = await get(session, d.url + "/metrics/", Accept="application/openmetrics-text")
        filtered = await get(session, d.url + "/metrics?name[]=sglang:num_running_reqs")
    assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {f.name for f in text_string_to_metric_families(plain.body.decode())}
    assert {"sglang:http_requests", "sglang:http_requests_active", "sglang:max_total_num_tokens"} <= names
    assert "sglang:num_running_reqs" not in names  # unused decode: no request gauge at all
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body).startswith(b"# HELP sglang:")
    assert openmetrics.headers["Content-Type"].startswith("application/openmetrics-text")
    assert openmetrics.body.endswith(b"# EOF\n")
    assert (filtered.status, filtered.body) == (200, b"")


async def test_http_requests_are_counted_by_known_paths_only() -> None:
    async with workers(DECODE) as (d,), client() as session:
        assert (await get(session, d.url + "/get_load")).status == 404
        assert (await get(session, d.url + "/model_info")).status == 200
        page = (await get(session, d.url + "/metrics")).body.decode()
    assert 'sglang:http_requests_total{endpoint="/model_info",method="GET"} 1.0' in page
    assert 'sglang:http_responses_total{endpoint="/*",method="GET",status_code="404"} 1.0' in page
    assert "get_load" not in page
    assert 'sglang:http_requests_active{endpoint="/metrics",method="GET"} 1.0' in page


async def test_metrics_may_be_off() -> None:
    async with workers(replace(DECODE, enable_metrics=False)) as (d,), client() as session:
        assert (await get(session, d.url + "/metrics")).status == 404
        assert (await get(session, d.url + "/v1/loads")).status == 200


async def test_loads_in_the_sections_asked_for() -> None:
    async with workers(replace(DECODE, dp=2)) as (d,), client() as session:
        url = d.url + "/v1/loads"
        everything = (await get(session, url)).json
        core = (await get(session, url + "?include=core")).json
        smg = (await get(session, url + "?include=core,disagg,queues,memory&dp_rank=1")).json
        bogus = await get(session, url + "?include=bogus")
        nobody = (await get(session, url + "?dp_rank=99")).json
        text = (await get(session, url + "?format=prometheus")).body.decode()
    assert everything["version"] == "0.5.23"
    assert 'sglang_disagg_decode_prealloc_queue_reqs{dp_rank="1"} 0\n' in text
    assert {f.name for f in text_string_to_metric_families(text)} == PROMETHEUS_LOADS
    assert [load["dp_rank"] for load in everything["loads"]] == [0, 1]
    sections = {"memory", "disaggregation", "queues"}
    assert sections <= set(everything["loads"][0])
    assert not sections & set(core["loads"][0])
    assert [load["dp_rank"] for load in smg["loads"]] == [1]
    assert smg["loads"][0]["disaggregation"]["mode"] == "decode"
    assert (bogus.status, bogus.body) == (500, b"Internal Server Error")
    assert nobody["loads"] == []


@pytest.mark.parametrize("spec", [PREFILL, DECODE])
async def test_who_it_says_it_is(spec: WorkerSpec) -> None:
    async with workers(spec) as (w,), client() as session:
        info = (await get(session, w.url + "/server_info")).json
        model = (await get(session, w.url + "/model_info")).json
        models = (await get(session, w.url + "/v1/models")).json
    assert (info["disaggregation_mode"], info["version"], info["dp_size"]) == (spec.role, "0.5.23", 1)
    assert info["port"] == int(w.url.rpartition(":")[2])
    assert model["disaggregation_mode"] == spec.role
    assert models["data"][0]["id"] == model["served_model_name"] == spec.model_name
    # Made-up secrets stand where real ones would, for a console to drop.
    assert info["api_key"] == FAKE_API_KEY
    assert FAKE_API_KEY in info["launch_command"]
    assert info["internal_states"][0]["api_key"] == FAKE_API_KEY


async def test_a_health_check_is_a_request_to_the_scheduler() -> None:
    async with workers(DECODE) as (d,), client() as session:
        assert (await get(session, d.url + "/health")).body == b""
        assert (await get(session, d.url + "/health_generate")).status == 200
        page = (await get(session, d.url + "/metrics")).body.decode()
        truth = (await get(session, d.url + "/truth")).json
    (count,) = (line for line in page.splitlines() if line.startswith("sglang:queue_time_seconds_count"))
    assert count.endswith(" 3.0")  # and the warm-up
    assert truth["counts"] == {}


async def test_the_cache_is_flushed_only_when_idle() -> None:
    async with workers(PREFILL, DECODE) as (p, d), client() as session:
        await both(session, p, d, "/generate", GENERATE)
        assert (await post(session, p.url + "/flush_cache", {})).status == 200
        _, again = await both(session, p, d, "/generate", GENERATE)
        assert again.json["meta_info"]["cached_tokens"] == 0
        waiting = asyncio.create_task(
            post(
                session,
                p.url + "/generate",
                {**GENERATE, "bootstrap_room": 9, "bootstrap_host": "127.0.0.1"},
            )
        )
        await until(session, p, "bootstrap", 1)
        assert (await get(session, p.url + "/flush_cache")).status == 400
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_data_ranks_share_the_requests() -> None:
    async with workers(replace(PREFILL, dp=2), replace(DECODE, dp=2)) as (p, d), client() as session:
        for room in range(4):
            _, right = await both(session, p, d, "/generate", {**GENERATE, "bootstrap_room": room})
            assert right.status == 200
        page = (await get(session, d.url + "/metrics")).body.decode()
        truth = (await get(session, p.url + "/truth")).json
    assert [rank["passes"] for rank in truth["ranks"]] == [2, 2]
    counts = [line for line in page.splitlines() if line.startswith("sglang:queue_time_seconds_count")]
    assert sorted(line.rpartition(" ")[2] for line in counts) == ["3.0", "3.0"]  # 2 requests and the warm-up


async def test_decode_notices_a_missing_prefill_by_its_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdtop.simulator.bootstrap.HEARTBEAT_LOSS_S", 0.01)
    async with workers(DECODE) as (d,), client() as session:
        body = {**GENERATE, "bootstrap_room": 1, "bootstrap_host": "127.0.0.1", "bootstrap_port": 1}
        answer = await post(session, d.url + "/generate", body)
    assert answer.status == 500


async def test_a_fault_may_come_later() -> None:
    spec = replace(DECODE, faults=(Fault("hang", 0.01),))
    async with workers(spec) as (d,), client() as session, asyncio.timeout(5):
        while (await get(session, d.url + "/health")).status != 503:
            pass


def test_a_spec_travels_as_json() -> None:
    spec = replace(PREFILL, faults=(Fault("slow", 1.0, 2.0),), dp=3, fd=9)
    assert WorkerSpec.from_json(spec.to_json()) == spec
    assert WorkerSpec.from_json('{"role": "decode", "decode": {"kv_tokens": 5}}').decode.kv_tokens == 5


async def test_the_session_of_a_stopped_worker_is_closed() -> None:
    async with workers(PREFILL, DECODE) as (p, d), client() as session:
        await both(session, p, d, "/generate", GENERATE)
        url = p.url
    async with client() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await get(session, url + "/metrics")
