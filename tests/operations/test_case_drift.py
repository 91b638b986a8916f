"""Case s51-config-router-reality: config.toml, router and workers tell three stories, each node is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pdtop.cluster.answers import KeyUse
from pdtop.cluster.board import Board, Setting
from pdtop.cluster.export import to_dict
from pdtop.cluster.interpret import metrics_reading
from pdtop.cluster.interpret_router import router_reading
from pdtop.cluster.readings import Answer
from pdtop.cluster.targets import combine, from_config
from pdtop.config.schema import Config
from pdtop.metrics.worker_page import WorkerPageReader
from pdtop.routers import detect

CASE = Path(__file__).parent.parent / "fixtures" / "cases" / "s51-config-router-reality" / "case.json"


def page(engine_type: str) -> bytes:
    labels = f'model_name="m",engine_type="{engine_type}",tp_rank="0",pp_rank="0"'
    return (
        f"# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{{{labels}}} 1.0\n"
        f"# TYPE sglang:num_queue_reqs gauge\nsglang:num_queue_reqs{{{labels}}} 0.0\n"
    ).encode()


def test_every_difference_is_listed_and_no_node_is_hidden() -> None:
    case: dict[str, Any] = json.loads(CASE.read_text(encoding="utf-8"))
    given = case["input"]
    config = Config.model_validate(
        {
            "server": {"url": "http://10.0.0.1:30000"},
            **{role: {"workers": workers} for role, workers in given["config"].items()},
        }
    )
    targets = from_config(config, cluster="c", folder=Path("/etc/pd"), environ={})
    (router,) = targets.routers
    body = json.dumps({"workers": [{"id": f"id-{n}", **one} for n, one in enumerate(given["router"])]})
    listed = router_reading(
        Answer(0.0, 0.01, 200, body=body.encode()),
        None,
        alive=True,
        dialect=detect.DIALECTS["smg"],
        keys=KeyUse(),
    )
    assert listed.workers is not None
    board = Board()
    board.setting = Setting("c", config)
    board.routers_changed(targets.routers)
    board.workers_changed(combine(targets, {router.name: listed.workers}).workers, ())
    board.router(router.name, listed)
    for key, real in given["reality"].items():
        answer = Answer(0.0, 0.01, 200, {"content-type": "text/plain"}, page(real["engine_type"]))
        board.metrics(key, metrics_reading(answer, WorkerPageReader(), KeyUse()))
    snapshot = board.snapshot(1.0, 1.0, None)

    expected = [(drift["node"], drift["what"]) for drift in case["expect"]["drift"]]
    assert [(drift.worker, drift.text) for drift in snapshot.drift] == expected
    assert [drift.kind for drift in snapshot.drift] == ["role", "not_in_router", "not_in_config"]
    assert {worker.key for worker in snapshot.workers} == set(given["reality"])
    assert [(d["worker"], d["text"]) for d in to_dict(snapshot)["drift"]] == expected
