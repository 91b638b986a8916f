"""Case s61: launch options read from the workers: prefill with as many DP ranks as TP."""

from __future__ import annotations

import json

import pytest

from pdtop.cluster.board import Board
from pdtop.cluster.interpret import info_reading
from pdtop.cluster.model import Identity, Role, Severity, Snapshot, Worker
from pdtop.cluster.watch import About
from pdtop.insight.launch import advice
from tests.cluster.captures import KEYS
from tests.cluster.story import answer
from tests.insight.case import case
from tests.insight.scenes import opinion, scene, worker


def snapshot_of(nodes: dict[str, dict[str, object]]) -> Snapshot:
    """Every node's ``/server_info`` through the product's reading of it."""
    board = Board()
    for name, said in nodes.items():
        board.add_worker(About(f"{name.lower()}:30000", name))
        board.info(f"{name.lower()}:30000", info_reading(answer(1.0, json.dumps(said)), KEYS))
    return board.snapshot(1.5, 0.0, 60.0)


def test_the_nodes_of_the_case() -> None:
    given, expect = case("s61-prefill-with-dp-equal-tp")
    snapshot = snapshot_of(given["nodes"])
    names = {w.key: w.name for w in snapshot.workers}
    found = [{"node": names[one.worker], "about": one.about} for one in advice(snapshot)]
    assert found == expect["advice"]
    told = [finding for finding in snapshot.findings if finding.kind == "launch_advice"]
    assert [names[finding.worker or ""] for finding in told] == ["P1"]
    assert not {names[one.worker] for one in advice(snapshot)} & set(expect["no_advice_for"])
    assert told[0].severity is Severity.INFO
    assert told[0].fix.startswith("advice only: ")
    assert told[0].text == "launch options: dp_size equals tp_size on prefill"


def prefill(**said: object) -> dict[str, object]:
    return {"disaggregation_mode": "prefill", "tp_size": 4, "dp_size": 1, **said}


def decode(**said: object) -> dict[str, object]:
    return {**prefill(**said), "disaggregation_mode": "decode"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (prefill(version="0.5.23", attn_dp_size=4, enable_dp_attention=True), "dp_size equals tp_size"),
        (prefill(enable_dp_attention=True), "with one DP rank"),
        (decode(ep_size=3), "ep_size does not divide"),
        (prefill(moe_dense_tp_size=2), "moe_dense_tp_size"),
        (prefill(load_balance_method="shortest_queue"), "of an old release"),
        (decode(disaggregation_transfer_backend="fake"), "backend fake"),
        (decode(served_model_name="a:b"), "with a colon"),
    ],
)
def test_each_rule_of_one_worker(said: dict[str, object], words: str) -> None:
    found = advice(snapshot_of({"N": said}))
    assert len(found) == 1, found
    assert words in found[0].about
    assert found[0].why
    assert found[0].fix


@pytest.mark.parametrize(
    "said",
    [
        prefill(dp_size=4),  # replicas of TP 4 each, without DP attention
        prefill(tp_size=1, dp_size=4),
        prefill(tp_size=8, dp_size=2, enable_dp_attention=True),
        decode(tp_size=4, dp_size=4, enable_dp_attention=True),
        prefill(ep_size=4, moe_dense_tp_size=1, load_balance_method="auto"),
        prefill(ep_size=None, moe_dense_tp_size=None),
        {"version": "0.4.0"},
    ],
)
def test_what_is_as_it_should_be(said: dict[str, object]) -> None:
    assert advice(snapshot_of({"N": said})) == ()


def test_ranks_that_the_router_chooses() -> None:
    identity = Identity(tp_size=4, dp_size=2, flags={"load_balance_method": "auto"})
    apart = worker("p", Role.PREFILL, identity=identity, opinions=(opinion(worker_ids=("a", "b")),))
    together = worker("q", Role.PREFILL, identity=identity, opinions=(opinion(worker_ids=("a",)),))
    assert [one.worker for one in advice(scene(apart, together))] == ["p"]


def of(key: str, role: Role, **said: object) -> Worker:
    flags = {name: str(said.pop(name)) for name in ("kv_cache_dtype", "page_size") if name in said}
    return worker(key, role, identity=Identity(flags=flags, **said))  # type: ignore[arg-type]  # names its fields


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ({"transfer_backend": "mooncake"}, {"transfer_backend": "nixl"}, "transfer backend nixl"),
        ({"kv_cache_dtype": "fp8_e5m2"}, {"kv_cache_dtype": "bfloat16"}, "KV dtype bfloat16"),
        ({"page_size": 64}, {"page_size": 1}, "page size 1, prefill has 64"),
        ({"model": "m"}, {"model": "n"}, "model n"),
        ({"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "bfloat16"}, ""),
        ({"page_size": 64}, {}, ""),
    ],
)
def test_what_prefill_and_decode_must_have_in_common(
    here: dict[str, object], there: dict[str, object], words: str
) -> None:
    found = advice(scene(of("p:1", Role.PREFILL, **here), of("d:1", Role.DECODE, **there)))
    assert [one.worker for one in found] == (["d:1"] if words else [])
    assert all(words in one.about for one in found)


def test_two_prefill_workers_of_one_host_with_one_bootstrap_port() -> None:
    def on(*keys: str) -> list[str]:
        workers = [of(key, Role.PREFILL, bootstrap_port=8998) for key in keys]
        return [one.worker for one in advice(scene(*workers))]

    assert on("h:1", "h:2", "i:1") == ["h:1", "h:2"]
    assert on("127.0.0.1:1", "127.0.0.1:2") == []


def test_a_worker_with_several_pieces_of_advice_is_told_once() -> None:
    snapshot = snapshot_of({"N": prefill(enable_dp_attention=True, ep_size=3)})
    told = [finding for finding in snapshot.findings if finding.kind == "launch_advice"]
    assert [finding.text for finding in told] == [
        "launch options: enable_dp_attention with one DP rank; 1 more"
    ]
    assert "ep_size does not divide tp_size: accepted at the start" in told[0].evidence
