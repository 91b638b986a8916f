"""Any request on any cluster: a plan never raises, never invents a number, never empties a pool unasked."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdtop.cluster.model import Identity, Role, Snapshot, State, Worker
from pdtop.operations.edits import after_edits
from pdtop.operations.effect import pool_effect
from pdtop.operations.guards import in_rotation
from pdtop.operations.model import (
    AddWorker,
    Drain,
    Plan,
    RemoveWorker,
    Request,
    SetValue,
    SetWeight,
    Undrain,
    UnsetValue,
)
from tests.operations.scenes import D1, D2, D3, P1, P2, cluster, loaded, planned

KEYS = (P1, P2, D1, D2, D3)
ENGINES = ("sglang-router", "smg", "pdtop", "unknown", "legacy", "vllm-router")
TEXTS = st.one_of(
    st.sampled_from(
        (*KEYS, "2.22:30001", "", "10.0.9.9:1", "[::1]:3", "http://10.0.2.21:30001/", "x\x1b[31m")
    ),
    st.text(max_size=12),
)
NUMBERS = st.one_of(st.none(), st.floats(0, 1e6), st.just(0.0))
FLOATS = st.one_of(st.sampled_from((0.0, 0.5, 1.0, 30.0, -1.0, math.nan, math.inf)), st.floats())
PATHS = st.one_of(
    st.sampled_from(
        (
            ("prefill", "cache_aware_threshold"),
            ("decode", "policy"),
            ("decode", "workers"),
            ("decode", "worker", D1, "drain"),
            ("decode", "worker", D2, "weight"),
            ("prefill", "worker", P1),
            ("health",),
            ("server", "url"),
            ("server",),
            (),
        )
    ),
    st.lists(st.text(max_size=8), max_size=4).map(tuple),
)
SPELLINGS = st.one_of(
    st.sampled_from(
        (
            "true",
            "0.4",
            "30",
            "nan",
            "inf",
            '"random"',
            "random",
            "[]",
            f'["{D1}"]',
            "{}",
            "",
            "1e999",
            "'",
            "#",
            "\x1b",
        )
    ),
    st.text(max_size=10),
)
KEYS_OF = st.lists(TEXTS, max_size=3).map(tuple)
REQUESTS: st.SearchStrategy[Request] = st.one_of(
    st.builds(Drain, st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True).map(tuple)),
    st.builds(Drain, KEYS_OF, FLOATS),
    st.builds(Undrain, KEYS_OF),
    st.builds(SetWeight, st.sampled_from(KEYS), st.sampled_from((0.0, 0.5, 1.0))),
    st.builds(SetWeight, TEXTS, FLOATS),
    st.builds(RemoveWorker, st.one_of(st.sampled_from(KEYS), TEXTS)),
    st.builds(AddWorker, st.sampled_from(list(Role)), TEXTS, st.one_of(st.none(), st.integers(-1, 70000))),
    st.builds(SetValue, PATHS, SPELLINGS),
    st.builds(UnsetValue, PATHS),
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Workers in any state; some of them gone."""
    made = cluster()
    workers: list[Worker] = []
    for worker in made.workers:
        if draw(st.integers(0, 9)) == 0:
            continue
        usable = draw(st.sampled_from((True, True, True, False, None)))
        workers.append(
            replace(
                worker,
                usable=usable,
                draining=draw(st.booleans()) if usable is False else False,
                state=draw(st.sampled_from((State.OK, None, State.REFUSED, State.TIMEOUT))),
                kv_use=draw(st.one_of(st.none(), st.floats(0, 1))),
                running=draw(NUMBERS),
                inflight=draw(NUMBERS),
                identity=Identity(kv_capacity_tokens=draw(st.one_of(st.none(), st.integers(0, 10**7)))),
            )
        )
    return replace(made, workers=tuple(workers))


@st.composite
def configs(draw: st.DrawFn) -> str:
    """Drained and weightless workers."""
    text = loaded().text
    for key in KEYS[:-1]:
        pool = "prefill" if key.startswith("10.0.1.") else "decode"
        line = draw(st.sampled_from(("", "", "drain = true", "weight = 0")))
        if line:
            text += f'\n[{pool}.worker."{key}"]\n{line}\n'
    return text


def numbers(made: Plan) -> list[float]:
    found = []
    for effect in made.effects:
        found += [effect.kv_before, effect.kv_after, effect.running_before, effect.running_after]
        found += [effect.usable_before, effect.usable_after, effect.total]
    return [number for number in found if number is not None]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REQUESTS, snapshots(), configs(), st.lists(st.sampled_from(ENGINES), max_size=2))
def test_any_plan(request: Request, snapshot: Snapshot, text: str, kinds: list[str]) -> None:
    engines = {f"r{number}": kind for number, kind in enumerate(kinds)}
    made = planned(request, snapshot, text, engines)
    assert all(math.isfinite(number) and number >= 0 for number in numbers(made))
    words = [made.title, *(part for row in made.rows for part in row), *(step.words for step in made.steps)]
    words += [guard.text + guard.to_change for guard in made.guards]
    assert not any("\x1b" in word for word in words), words
    if made.refusal is not None or made.overrides or not made.edits:
        return
    before = loaded(text)
    after = after_edits(before, made.edits)
    assert before.config is not None
    assert after.config is not None
    for role in (Role.PREFILL, Role.DECODE):
        was, now = (in_rotation(one.config, role, kinds) for one in (before, after) if one.config)
        usable = {worker.key for worker in snapshot.pool_workers(role) if worker.usable is True}
        if usable & was and was - now:
            assert usable & now, (made.guards, usable, was, now)


@settings(max_examples=100, deadline=None)
@given(
    snapshots(),
    st.sampled_from((Role.PREFILL, Role.DECODE)),
    *(st.sets(st.sampled_from(KEYS)) for _ in range(3)),
)
def test_any_effect(
    snapshot: Snapshot, role: Role, without: set[str], back: set[str], idle: set[str]
) -> None:
    found = pool_effect(snapshot, role, without, back=back, idle=idle)
    assert 0 <= found.usable_after <= found.total
    assert 0 <= found.usable_before <= found.total
    for number in (found.kv_before, found.kv_after, found.running_before, found.running_after):
        assert number is None or (math.isfinite(number) and number >= 0)
