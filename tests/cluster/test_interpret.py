"""What a worker's answers mean: every state, every fixture of loads and identity, no secret kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtop.cluster.answers import KeyUse
from pdtop.cluster.interpret import (
    dp_ranks,
    health_reading,
    info_reading,
    loads_reading,
    metrics_reading,
    parse_loads,
)
from pdtop.cluster.model import Role, State
from pdtop.cluster.readings import Answer, LoadRank, MetricsReading
from pdtop.metrics.worker_page import WorkerPageReader

FIXTURES = Path(__file__).parent.parent / "fixtures"
WORKER = FIXTURES / "worker"
REAL = FIXTURES / "real"
PAGE = b"""# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{tp_rank="0"} 5.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{tp_rank="0"} 1.0
"""
TEXT = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
KEYS = KeyUse()
HTML = {"content-type": "text/html; charset=utf-8"}


def metrics(keys: KeyUse = KEYS, **answer: Any) -> MetricsReading:
    given = {"at": 7.0, "seconds": 0.5, "status": 200, "headers": TEXT, **answer}
    return metrics_reading(Answer(**given), WorkerPageReader(), keys)


def ok(body: bytes) -> Answer:
    return Answer(7.0, 0.1, 200, {"content-type": "application/json"}, body)


def test_a_good_page() -> None:
    reading = metrics(body=PAGE)
    assert (reading.state, reading.reason, reading.fix) == (State.OK, "", "")
    assert (reading.at, reading.status, reading.seconds) == (7.0, 200, 0.5)
    assert reading.numbers is not None
    assert reading.numbers.gauge("running") == 5.0


@pytest.mark.parametrize(
    ("answer", "state", "reason", "fix"),
    [
        ({"status": 401}, State.AUTH, "401", "PDTOP_API_KEY"),
        ({"status": 403}, State.AUTH, "403", "PDTOP_API_KEY"),
        ({"status": 404}, State.METRICS_DISABLED, "404", "--enable-metrics"),
        ({"status": 500}, State.HTTP_ERROR, "500 Internal Server Error", "log"),
        ({"status": 799}, State.HTTP_ERROR, "799", "log"),
        ({"status": 204}, State.HTTP_ERROR, "204", ""),
        ({"status": 301}, State.REDIRECT, "nowhere", ""),
        ({"status": 302, "failure": State.REDIRECT, "detail": "302 to x"}, State.REDIRECT, "302 to x", ""),
        ({"status": None, "failure": State.TIMEOUT, "detail": "no"}, State.TIMEOUT, "no", "timeout_secs"),
        ({"status": None, "failure": State.REFUSED, "detail": "no"}, State.REFUSED, "no", "port"),
        ({"status": None, "failure": State.TLS, "detail": "no"}, State.TLS, "no", "CA"),
        ({"status": None, "failure": State.HTTP_ERROR, "detail": "no"}, State.HTTP_ERROR, "no", ""),
        ({"body": b""}, State.NOT_METRICS, "empty", "port"),
        ({"body": b"\n\n"}, State.NOT_METRICS, "200", "port"),
        ({"body": b"<!doctype html><p>5 running", "headers": HTML}, State.NOT_METRICS, "web page", "port"),
        ({"body": b'{"error": "x"}'}, State.NOT_METRICS, "text/plain", "port"),
        ({"body": b"up 1\n", "headers": {}}, State.NOT_METRICS, "none of the engine's", "port"),
        ({"body": b"x" * 99, "truncated": True, "failure": State.PARTIAL}, State.NOT_METRICS, "200", ""),
    ],
)
def test_states_without_numbers(answer: dict[str, Any], state: State, reason: str, fix: str) -> None:
    reading = metrics(**answer)
    assert reading.state is state
    assert reason in reading.reason
    assert fix in reading.fix
    assert reading.numbers is None


def test_a_refused_key_is_told_from_a_missing_one() -> None:
    missing = metrics(KeyUse("MY_KEY", sent=False), status=401)
    refused = metrics(KeyUse("MY_KEY", sent=True), status=401)
    assert "set the variable MY_KEY" in missing.fix
    assert "not the one it wants" in refused.fix


def test_metrics_under_a_wrong_content_type_are_read() -> None:
    reading = metrics(body=PAGE, headers=HTML)
    assert reading.state is State.OK
    assert reading.numbers is not None


def test_bad_and_repeated_lines_are_warnings() -> None:
    reading = metrics(body=PAGE + b"what is this\n" + PAGE.splitlines()[1] + b"\n")
    assert reading.state is State.OK_WITH_WARNINGS
    assert reading.reason == "1 of 6 lines cannot be read, 1 series repeated"
    assert reading.numbers is not None
    assert reading.numbers.gauge("running") == 5.0


def test_half_a_page_gives_the_numbers_that_came() -> None:
    reading = metrics(
        body=PAGE[:-3],
        truncated=True,
        failure=State.PARTIAL,
        detail="the connection ended early, after 9 bytes",
    )
    assert reading.state is State.PARTIAL
    assert reading.reason.startswith("the connection ended early")
    assert reading.numbers is not None
    assert reading.numbers.gauge("running") == 5.0
    assert reading.numbers.gauge("queue") is None  # its line may be cut in the number


@given(st.binary(max_size=300), st.booleans())
def test_no_page_raises(body: bytes, truncated: bool) -> None:
    failure = State.PARTIAL if truncated else None
    reading = metrics(body=body, truncated=truncated, failure=failure)
    assert reading.state in (State.NOT_METRICS, State.OK, State.OK_WITH_WARNINGS, State.PARTIAL)


PREFILL = LoadRank(
    dp_rank="0",
    timestamp=1795969190.25,
    running=0.0,
    waiting=19.0,
    queue=7.0,
    bootstrap=12.0,
    inflight=5.0,
    prealloc=0.0,
    transfer=0.0,
    retracted=0.0,
    used_tokens=88123.0,
    capacity_tokens=262144.0,
    max_running=128.0,
    token_usage=0.3362,
    gen_throughput=0.0,
    cache_hit_rate=0.4181,
)


def test_loads_of_a_prefill_worker() -> None:
    loads = parse_loads((WORKER / "loads-0.5.23-prefill.json").read_bytes())
    assert loads is not None
    assert (loads.timestamp, loads.version, loads.role) == (1795969513.934021, "0.5.23", Role.PREFILL)
    assert loads.ranks == (PREFILL,)
    assert PREFILL.reported


def test_loads_of_four_ranks() -> None:
    loads = parse_loads((WORKER / "loads-0.5.23-decode-dp4.json").read_bytes())
    assert loads is not None
    assert loads.role is Role.DECODE
    assert [rank.dp_rank for rank in loads.ranks] == ["0", "1", "2", "3"]
    assert [rank.running for rank in loads.ranks] == [61.0, 70.0, 79.0, 88.0]
    first = loads.ranks[0]
    assert (first.prealloc, first.transfer, first.retracted, first.token_usage) == (3.0, 4.0, 0.0, 0.6523)


def test_loads_of_ranks_that_never_reported() -> None:
    loads = parse_loads((WORKER / "loads-0.5.23-fresh-dp2.json").read_bytes())
    assert loads is not None
    assert [rank.reported for rank in loads.ranks] == [False, False]
    assert [rank.capacity_tokens for rank in loads.ranks] == [None, None]
    assert loads.role is Role.UNKNOWN


def test_loads_of_the_first_release_that_has_them() -> None:
    loads = parse_loads((WORKER / "loads-0.5.8-prefill.reconstructed.json").read_bytes())
    assert loads is not None
    (rank,) = loads.ranks
    assert (rank.bootstrap, rank.queue, rank.inflight, rank.waiting) == (7.0, 5.0, 5.0, 12.0)


def test_the_forerunner_of_loads() -> None:
    new = parse_loads((WORKER / "get_load-0.5.16-dp2.reconstructed.json").read_bytes())
    old = parse_loads((WORKER / "get_load-0.5.2.reconstructed.json").read_bytes())
    assert new is not None
    assert old is not None
    assert [(r.dp_rank, r.running, r.waiting, r.used_tokens) for r in new.ranks] == [
        ("0", 27.0, 4.0, 88123.0),
        ("1", 28.0, 4.0, 88124.0),
    ]
    assert [(r.running, r.waiting, r.used_tokens) for r in old.ranks] == [(None, None, 41233.0)]


@pytest.mark.parametrize(
    "path", sorted(REAL.glob("sglang-0.5.23*/*/*.v1_loads.json")), ids=lambda p: str(p)[-40:]
)
def test_loads_of_real_workers(path: Path) -> None:
    loads = parse_loads(path.read_bytes())
    assert loads is not None
    assert loads.version == "0.5.23"
    assert loads.role is (Role.PREFILL if "prefill" in path.name else Role.DECODE)
    assert all(rank.running is not None and rank.capacity_tokens for rank in loads.ranks)


def test_a_hung_scheduler_shows_in_the_loads() -> None:
    folder = REAL / "sglang-0.5.23+sglang-router-0.3.2" / "2p2d-decode0-scheduler-hung"
    ages = []
    for name in ("decode0", "decode1"):
        loads = parse_loads((folder / f"{name}.v1_loads.json").read_bytes())
        assert loads is not None
        assert loads.timestamp is not None
        stamp = loads.ranks[0].timestamp
        assert stamp is not None
        ages.append(round(loads.timestamp - stamp, 1))
    assert ages[0] == 8.0
    assert ages[1] < 1.3


@pytest.mark.parametrize(
    ("body", "ranks"),
    [
        (b'{"loads": []}', 0),
        (b'{"loads": [{}]}', 1),
        (b"[]", 0),
        (b'{"loads": [{"dp_rank": null, "num_running_reqs": "3", "num_waiting_reqs": -1}]}', 1),
        (b'{"loads": [{"num_running_reqs": NaN, "token_usage": Infinity, "num_used_tokens": true}]}', 1),
        (b'{"loads": [{"num_running_reqs": ' + b"9" * 400 + b"}]}", 1),
        (b'{"loads": [7, "x", null]}', 3),
        (b'{"loads": {"a": 1}}', 0),
    ],
)
def test_odd_loads(body: bytes, ranks: int) -> None:
    loads = parse_loads(body)
    assert loads is not None
    assert len(loads.ranks) == ranks
    assert all(rank.running is None and rank.waiting is None for rank in loads.ranks)


@pytest.mark.parametrize("body", [b"", b"x", b"{}", b"7", b"null", b"[" * 100_000, b'{"load": "x"}', b"\xff"])
def test_no_loads(body: bytes) -> None:
    assert parse_loads(body) is None
    assert loads_reading(ok(body), KeyUse()).state is State.HTTP_ERROR


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        ('"2026-11-29T16:25:13.941358+00:00"', 1795969513.941358),
        ('"2026-11-29T16:25:13.941358123Z"', 1795969513.941358),
        ('"2026-11-29T16:25:13"', None),  # whose clock?
        ("1795969513.5", 1795969513.5),
        ('"yesterday"', None),
        ("null", None),
    ],
)
def test_the_moment_of_loads(timestamp: str, seconds: float | None) -> None:
    loads = parse_loads(f'{{"timestamp": {timestamp}, "loads": []}}'.encode())
    assert loads is not None
    assert loads.timestamp == seconds


def test_loads_that_are_not_there() -> None:
    reading = loads_reading(Answer(1.0, 0.1, 404), KeyUse())
    assert (reading.supported, reading.loads) == (False, None)
    assert loads_reading(Answer(1.0, 0.1, 401), KeyUse()).state is State.AUTH
    slow = loads_reading(Answer(1.0, 2.0, failure=State.TIMEOUT, detail="no"), KeyUse())
    assert (slow.state, slow.supported) == (State.TIMEOUT, True)


@pytest.mark.parametrize(
    ("answer", "ready", "state"),
    [
        (Answer(1.0, 0.1, 200), True, State.OK),
        (Answer(1.0, 0.1, 503), False, State.HTTP_ERROR),
        (Answer(1.0, 0.1, 404), None, State.HTTP_ERROR),
        (Answer(1.0, 20.0, failure=State.TIMEOUT, detail="no"), None, State.TIMEOUT),
        (Answer(1.0, 0.0, failure=State.REFUSED, detail="no"), None, State.REFUSED),
    ],
)
def test_health(answer: Answer, ready: bool | None, state: State) -> None:
    reading = health_reading(answer, "/health")
    assert (reading.ready, reading.state, reading.endpoint) == (ready, state, "/health")
    assert bool(reading.reason) is (state is not State.OK)


@pytest.mark.parametrize(
    ("name", "role", "tp", "dp", "running", "tokens"),
    [
        ("0.5.2-decode-dp4.reconstructed", Role.DECODE, 4, 4, 512, 1048576),
        ("0.5.23-decode-dp4-attn.partly-reconstructed", Role.DECODE, 4, 4, 512, 1048576),
        ("0.5.23-decode-dp4-replicas.partly-reconstructed", Role.DECODE, 1, 4, 512, 1048576),
        ("0.5.23-decode-legacy-flags-with-keys.partly-reconstructed", Role.DECODE, 4, 4, 512, 1048576),
        ("0.5.23-prefill-tp4.partly-reconstructed", Role.PREFILL, 4, 1, 128, 262144),
    ],
)
def test_server_info(name: str, role: Role, tp: int, dp: int, running: int, tokens: int) -> None:
    reading = info_reading(ok((WORKER / f"server_info-{name}.json").read_bytes()), KeyUse())
    identity = reading.identity
    assert (reading.state, reading.role) == (State.OK, role)
    assert identity.version == name.partition("-")[0]
    assert identity.model == "Qwen3-235B-A22B"
    assert (identity.tp_size, identity.pp_size, identity.dp_size) == (tp, 1, dp)
    assert (identity.transfer_backend, identity.bootstrap_port) == ("mooncake", 8998)
    assert (identity.max_running_requests, identity.kv_capacity_tokens) == (running, tokens)
    assert identity.flags["enable_metrics"] == "true"


def test_no_secret_survives() -> None:
    body = (
        WORKER / "server_info-0.5.23-decode-legacy-flags-with-keys.partly-reconstructed.json"
    ).read_bytes()
    secrets = {json.loads(body)["api_key"], json.loads(body)["admin_api_key"]}
    assert len(secrets) == 2
    shown = repr(info_reading(ok(body), KeyUse()))
    assert not any(secret in shown for secret in secrets)
    for word in ("api_key", "launch_command", "password", "--api-key", "REDACTED", "internal_states"):
        assert word not in shown


def test_only_named_flags_are_kept() -> None:
    body = json.dumps(
        {
            "version": "9.9.9",
            "new_secret_flag": "hunter2",
            "env_vars": {"HF_TOKEN": "hunter2"},
            "kv_cache_dtype": "fp8\x1b[31m[bold]",
            "page_size": {"x": "hunter2"},
            "enable_metrics": True,
            "mem_fraction_static": 0.85,
        }
    )
    identity = info_reading(ok(body.encode()), KeyUse()).identity
    assert identity.flags == {
        "kv_cache_dtype": "fp8 [31m[bold]",
        "enable_metrics": "true",
        "mem_fraction_static": "0.85",
    }


@pytest.mark.parametrize(
    "path", sorted(REAL.rglob("*_info.json")), ids=lambda p: f"{p.parent.parent.name}/{p.name}"
)
def test_identity_of_real_workers(path: Path) -> None:
    reading = info_reading(ok(path.read_bytes()), KeyUse())
    assert reading.state is State.OK
    old_model_info = "sglang-0.5.6" in str(path) and "model_info" in path.name
    expected = Role.PREFILL if "prefill" in path.name else Role.DECODE
    assert reading.role is (Role.UNKNOWN if old_model_info else expected)
    assert reading.identity.model in ("tiny-llama", "model/tiny-llama")


def test_fingerprints_tell_processes_apart() -> None:
    found = [
        info_reading(ok(path.read_bytes()), KeyUse()).fingerprint
        for path in sorted(REAL.rglob("*server_info.json"))
        if "0.5.23" in str(path)
    ]
    assert len(set(found)) == len(found) > 2
    assert "" not in found
    old = REAL / "sglang-0.5.6+sglang-router-0.3.2" / "1p1d-idle" / "decode0.server_info.json"
    assert info_reading(ok(old.read_bytes()), KeyUse()).fingerprint == ""


def test_a_role_switch_shows() -> None:
    body: dict[str, Any] = {"version": "0.5.23", "disaggregation_mode": "prefill", "internal_states": []}
    assert info_reading(ok(json.dumps(body).encode()), KeyUse()).role is Role.PREFILL
    body["internal_states"] = [{"disaggregation_mode": "decode"}]
    assert info_reading(ok(json.dumps(body).encode()), KeyUse()).role is Role.DECODE


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"status": "ok"}', b"<html>"])
def test_no_identity(body: bytes) -> None:
    reading = info_reading(ok(body), KeyUse())
    assert (reading.state, reading.role) == (State.HTTP_ERROR, Role.UNKNOWN)
    assert reading.reason


@pytest.mark.parametrize(
    ("version", "dp_size", "attn_dp_size", "ranks"),
    [
        ("0.5.21", 4, 4, 4),
        ("0.5.21", 4, None, 4),
        ("0.5.22", 1, 4, 4),
        ("0.5.22", 2, 1, 2),
        ("0.5.23.post1", 1, 8, 8),
        ("0.10.0", 1, 8, 8),
        ("0.4.6.post5", 2, 8, 2),
        (None, 1, 4, 4),
        ("main", 1, 4, 4),
        ("0.5.23", None, 4, None),
    ],
)
def test_number_of_ranks(
    version: str | None, dp_size: int | None, attn_dp_size: int | None, ranks: int | None
) -> None:
    assert dp_ranks(version, dp_size, attn_dp_size) == ranks
