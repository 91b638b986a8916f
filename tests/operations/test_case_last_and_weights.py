"""Cases s44 (drain the only decode worker) and s45 (the last weight to 0), through planning and the gate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdtop.cluster.model import Role, Snapshot
from pdtop.operations.model import Drain, Outcome, Plan, SetWeight
from tests.insight.scenes import router, scene, worker
from tests.operations.plant import plant, virtual
from tests.operations.scenes import allowed, planned, row

CASES = Path(__file__).parent.parent / "fixtures" / "cases"


def case(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((CASES / name / "case.json").read_text())
    return found


def key(name: str) -> str:
    return f"{name.lower()}:30000"


def snapshot_of(roles: Mapping[str, Role], **states: bool) -> Snapshot:
    workers = [worker(key(n), role, name=n, usable=states.get(n, True)) for n, role in roles.items()]
    return scene(*workers, routers=[router()])


def mentioned(made: Plan, words: list[str]) -> bool:
    """All words stand in the text of one guard that stops the plan."""
    stops = [guard.text.lower() for guard in made.guards if guard.blocks]
    return any(all(word.lower() in text for word in words) for text in stops)


def test_drain_of_the_only_decode_node() -> None:
    s44 = case("s44-last-decode-node")
    given, expect = s44["input"], s44["expect"]
    roles = {w["id"]: Role(w["role"]) for w in given["workers"]}
    states = {w["id"]: w["state"] == "ready" for w in given["workers"]}
    lists = {r: [key(n) for n, role in roles.items() if role is r] for r in (Role.PREFILL, Role.DECODE)}
    config = "\n".join(f"[{r}]\nworkers = {json.dumps(keys)}" for r, keys in lists.items())
    target = given["action"]["drain"]

    made = planned(Drain((key(target),)), snapshot_of(roles, **states), config)

    assert allowed(made) is expect["allowed"]
    assert mentioned(made, expect["reason_mentions"]), made.guards
    assert expect["override"] == "typed node name"
    assert made.overrides == (target,)
    assert allowed(made, target)
    assert not allowed(made, "yes")
    assert "every new request fails" in next(g.text for g in made.guards if g.blocks)


@virtual
async def test_the_gate_calls_no_router_for_it(tmp_path: Path) -> None:
    expect = case("s44-last-decode-node")["expect"]
    async with plant(tmp_path, decode=1) as cluster, cluster.console() as console:
        worker, before = cluster.decode[0].key, cluster.text
        refused = await console.do(Drain((worker,)))
        assert (refused.outcome is not Outcome.REFUSED) is expect["allowed"]
        assert all(word in refused.words for word in expect["reason_mentions"]), refused
        assert f"type {worker}" in refused.next_step
        assert len(cluster.routers[0].model.writes) == expect["router_calls"]
        assert cluster.text == before


def test_the_last_weight_to_zero() -> None:
    s45 = case("s45-all-weights-zero")
    given, expect = s45["input"], s45["expect"]
    weights: Mapping[str, float] = given["weights"]
    assert given["router_uses_weights"] is False
    engines = {"r": "smg"}  # reads no weights
    tables = "\n".join(f'[decode.worker."{key(n)}"]\nweight = {w}' for n, w in weights.items())
    config = (
        f'[decode]\nworkers = {json.dumps([key(n) for n in weights])}\npolicy = "{given["policy"]}"\n{tables}'
    )
    snapshot = snapshot_of(dict.fromkeys(weights, Role.DECODE))
    target, weight = given["action"]["set_weight"]

    made = planned(SetWeight(key(target), weight), snapshot, config, engines)

    assert allowed(made) is expect["allowed"]
    assert not allowed(made, target)
    assert mentioned(made, expect["reason_mentions"]), made.guards
    assert expect["also_warns"] in [guard.text for guard in made.warnings]
    assert made.edits == ()
    assert made.steps == ()

    valid = planned(SetWeight(key(target), 0.5), snapshot, config, engines)
    assert allowed(valid)
    assert expect["effective_share_after_valid_change"] == "unchanged"
    assert "share unchanged" in row(valid, "After")
    assert expect["also_warns"] in [guard.text for guard in valid.warnings]
