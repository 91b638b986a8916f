"""``config check --engine``: every key of a file with what that engine does, and whether it would start."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtop.cli.engine_check import EngineCheck, check
from pdtop.config.load import load_bytes

FILE = """
[server]
port = 30000
url = "http://r:30000"

[prefill]
workers = ["p1:1", "p2:1"]
policy = "cache_aware"
cache_aware_threshold = 0.5
load_balance_threshold = 0.8

[prefill.worker."p1:1"]
weight = 0.5

[prefill.worker."p2:1"]
weight = 2.0

[decode]
workers = ["d1:1", "d2:1"]
policy = "power_of_two"

[decode.worker."d1:1"]
drain = true

[health]
timeout_secs = 3

[topology]
cross_rack = 4.0

[slo]
ttft_p99_ms = 800
tpot_p99_ms = 50
"""


def checked(engine: str, text: str = FILE) -> EngineCheck:
    loaded = load_bytes(Path("config.toml"), text.encode())
    assert loaded.ok and loaded.config is not None
    return check(loaded.config, loaded.document, engine, {})


def kinds(found: EngineCheck) -> dict[str, str]:
    return {name: what.kind for name, what in found.rows}


def test_the_embedded_router_takes_nearly_all_keys_live() -> None:
    found = checked("embedded")
    assert kinds(found) == {
        "server.port": "restart",
        "server.url": "pdtop",
        "prefill.workers": "live",
        "prefill.policy": "live",
        "prefill.cache_aware_threshold": "live",
        "prefill.load_balance_threshold": "live",
        "prefill.worker.*.weight": "live",
        "decode.workers": "live",
        "decode.policy": "live",
        "decode.worker.*.drain": "live",
        "health.timeout_secs": "live",
        "topology.cross_rack": "live",
        "slo": "pdtop",
    }
    assert (found.otherwise, found.refused) == ((), None)
    assert found.text.endswith("\npdtop router runs this file")


def test_smg_has_no_weights_and_one_limit() -> None:
    found = checked("smg")
    expected = {
        "server.port": "live",  # pdtop holds it
        "prefill.workers": "live",
        "prefill.policy": "restart",
        "prefill.cache_aware_threshold": "restart",
        "prefill.load_balance_threshold": "none",
        "prefill.worker.*.weight": "none",
        "decode.worker.*.drain": "live",
        "health.timeout_secs": "live",
        "topology": "pdtop",
    }
    assert {name: kinds(found)[name] for name in expected} == expected
    assert any("0.5 becomes --balance-rel-threshold 2:" in words for words in found.otherwise)
    assert "weights are left out (p1:1, p2:1): smg has none" in found.otherwise


def test_pdtop_router_runs_a_pool_that_the_engine_alone_would_refuse() -> None:
    found = checked("smg")
    assert found.refused is None
    assert found.alone is not None and "power_of_two and fewer than 2 decode workers" in found.alone
    assert "runs this file under pdtop router; by itself it would not" in found.text.splitlines()[-1]


def test_sglang_router_needs_a_restart_for_health_settings() -> None:
    found = checked("sglang-router")
    assert kinds(found)["health.timeout_secs"] == "restart"
    assert kinds(found)["prefill.cache_aware_threshold"] == "none"
    assert any("picks at random with cache_aware" in words for words in found.otherwise)


@pytest.mark.parametrize(
    ("engine", "policy"),
    [("smg", "pair_aware"), ("sglang-router", "least_load"), ("embedded", "bucket")],
)
def test_a_policy_that_the_engine_does_not_know_is_refused(engine: str, policy: str) -> None:
    found = checked(engine, f'[prefill]\nworkers = ["p:1"]\npolicy = "{policy}"\n')
    assert found.refused is not None and f"has no prefill policy {policy}" in found.refused
    assert found.refused not in found.otherwise
    assert found.text.splitlines()[-1] == f"error: {found.refused}"


def test_what_the_file_does_not_hold_is_not_spoken_of() -> None:
    assert checked("smg", "[decode.worker]\n[prefill]\nworkers = []\n").rows[0][0] == "prefill.workers"
    assert checked("smg", "[decode]\n").text == 'with engine = "smg":\nsmg runs this file'


def test_a_key_in_a_wrong_place_is_not_shown() -> None:
    secret = "sk-" + "a1b2c3d4" * 5
    found = checked("smg", f'[server]\n"{secret}" = 1\n')
    assert secret not in found.text
    assert kinds(found).popitem()[1] == "none"
