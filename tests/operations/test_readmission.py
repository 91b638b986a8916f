"""The check list after an undrain, line by line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdtop.cluster.model import (
    Breaker,
    Health,
    Identity,
    Role,
    Router,
    RouterOpinion,
    Snapshot,
    State,
    Worker,
)
from pdtop.operations.readmission import PATIENCE_S, Check, CheckState, Former, ReadmissionWatch
from tests.insight.scenes import worker

BACK = 1_700_000_000.0
OK, WAITING, FAILED = CheckState.OK, CheckState.WAITING, CheckState.FAILED
SAME = Identity(model="llama", version="0.5.23")
BEFORE = Former("llama", "0.5.23")


def said(router: str = "R1", /, **more: object) -> RouterOpinion:
    plain = RouterOpinion(
        router, health=Health.HEALTHY, breaker=Breaker.CLOSED, requests=12.0, failure_rate=0.0
    )
    return replace(plain, **more)  # type: ignore[arg-type]  # each test names fields of RouterOpinion


def back(role: Role = Role.DECODE, /, **more: object) -> Worker:
    given: dict[str, object] = {"opinions": (said(),), "identity": SAME, **more}
    return worker("w", role, **given)


def snapshot(*workers: Worker, after: float = 60.0, routers: tuple[str, ...] = ("R1",)) -> Snapshot:
    listed = tuple(Router(name, f"http://{name}", "smg", state=State.OK) for name in routers)
    return Snapshot(1, "c", BACK + after, 30.0, 2.0, routers=listed, workers=workers)


def checks(*shots: Snapshot, former: Former | None = BEFORE) -> dict[str, Check]:
    watch = ReadmissionWatch("w", since=BACK, former=former)
    for shot in shots:
        watch.feed(shot)
    return {check.name: check for check in watch.checks}


def verdict(name: str, *shots: Snapshot, former: Former | None = BEFORE) -> tuple[CheckState, str]:
    found = checks(*shots, former=former)[name]
    return found.state, found.words


def test_all_well() -> None:
    watch = ReadmissionWatch("w", since=BACK, former=BEFORE)
    other = worker("o", Role.PREFILL, hit_rate=0.6, identity=SAME)
    watch.feed(snapshot(back(Role.PREFILL, hit_rate=0.55), other))
    assert [(check.name, check.words) for check in watch.checks] == [
        ("healthy", "healthy at every router"),
        ("model", "llama as its pool"),
        ("version", "0.5.23 as its pool"),
        ("breaker", "breaker closed"),
        ("requests", "12 requests, none failed"),
        ("hit rate", "55 %, pool 60 %"),
    ]
    assert {check.state for check in watch.checks} == {CheckState.OK}


def test_a_decode_worker_has_no_hit_rate_to_recover() -> None:
    assert "hit rate" not in checks(snapshot(back()))


def test_a_worker_that_is_not_there() -> None:
    assert verdict("seen", snapshot()) == (WAITING, "not among the workers for 1m00s")
    assert verdict("seen", snapshot(after=PATIENCE_S + 1))[0] is FAILED
    assert verdict("seen", snapshot(back(), after=-5.0)) == (WAITING, "not read yet")


@pytest.mark.parametrize(
    ("opinions", "state", "words"),
    [
        ((said(), said("R2")), OK, "healthy at every router"),
        ((said(), said("R2", health=Health.PENDING)), WAITING, "pending at R2 after 1m00s"),
        ((said(), said("R2", health=None)), WAITING, "in an unknown state at R2 after 1m00s"),
        ((said(), RouterOpinion("R2", listed=False)), WAITING, "not on the list of R2 after 1m00s"),
        ((said(),), WAITING, "R2 does not say after 1m00s"),
    ],
)
def test_healthy_at_every_router(opinions: tuple[RouterOpinion, ...], state: CheckState, words: str) -> None:
    shot = snapshot(back(opinions=opinions), routers=("R1", "R2"))
    assert verdict("healthy", shot) == (state, words)
    late = replace(shot, at=BACK + PATIENCE_S + 1)
    assert verdict("healthy", late)[0] is (OK if state is OK else FAILED)


@pytest.mark.parametrize(
    ("now", "before", "others", "state", "words"),
    [
        ("0.5.23", "0.5.23", (), OK, "0.5.23 as before"),
        ("0.5.24", "0.5.23", (), FAILED, "0.5.24, was 0.5.23"),
        ("0.5.24", "0.5.23", ("0.5.24", None), OK, "0.5.24 as its pool, was 0.5.23"),
        ("0.5.24", "0.5.24", ("0.5.23", "0.5.23", "0.5.24"), FAILED, "0.5.24, its pool has 0.5.23"),
        ("0.5.24", None, ("0.5.23", "0.5.24"), OK, "0.5.24 as its pool"),
        ("0.5.24", None, (), OK, "0.5.24; nothing to compare with"),
        (None, "0.5.23", ("0.5.23",), WAITING, "it does not say"),
    ],
)
def test_same_version_as_its_pool_or_as_before(
    now: str | None, before: str | None, others: tuple[str | None, ...], state: CheckState, words: str
) -> None:
    pool = [worker(f"o{n}", identity=Identity(version=version)) for n, version in enumerate(others)]
    shot = snapshot(back(identity=Identity(version=now)), *pool)
    assert verdict("version", shot, former=Former(version=before)) == (state, words)


def test_the_model_may_come_from_a_router() -> None:
    unnamed = back(identity=Identity(), opinions=(said(model="qwen"),))
    assert verdict("model", snapshot(unnamed)) == (FAILED, "qwen, was llama")
    assert Former.of(back()) == BEFORE


@pytest.mark.parametrize(
    ("breakers", "state", "words"),
    [
        ((Breaker.CLOSED, None), OK, "breaker closed"),
        ((Breaker.CLOSED, Breaker.OPEN), FAILED, "open at R2"),
        ((Breaker.HALF_OPEN, Breaker.CLOSED), WAITING, "half-open at R1"),
        ((None, None), WAITING, "no router tells its circuit"),
    ],
)
def test_breaker(breakers: tuple[Breaker | None, Breaker | None], state: CheckState, words: str) -> None:
    opinions = (said(breaker=breakers[0]), said("R2", breaker=breakers[1]))
    assert verdict("breaker", snapshot(back(opinions=opinions))) == (state, words)


def with_requests(
    count: float | None, failing: float | None = 0.0, after: float = 60.0, **more: object
) -> Snapshot:
    return snapshot(back(opinions=(said(requests=count, failure_rate=failing),), **more), after=after)


@pytest.mark.parametrize(
    ("shots", "state", "words"),
    [
        ((with_requests(0.0, None),), WAITING, "no request yet"),
        ((with_requests(3.0),), OK, "3 requests, none failed"),
        ((with_requests(3.0, None),), WAITING, "3 requests sent, none ended yet"),
        (
            (with_requests(0.0, None, finished=7.0), with_requests(3.0, None, finished=8.0)),
            OK,
            "3 requests, none failed",
        ),
        ((with_requests(4.0, 0.25),), FAILED, "25 % of its requests fail"),
        ((with_requests(None, None, running=0.0),), WAITING, "no router counts its requests"),
        ((with_requests(None, None),), OK, "works on requests; no router counts them"),
        # a short drain: the window still holds what was before it, failures too
        ((with_requests(9.0, 0.5, 1.0), with_requests(7.0, 0.5, 5.0)), WAITING, "no request yet"),
        ((with_requests(9.0, 0.0, 1.0), with_requests(7.0, 0.0, 5.0)), WAITING, "no request yet"),
        ((with_requests(7.0, 0.0, 1.0), with_requests(9.0, 0.0, 5.0)), OK, "2 requests, none failed"),
        (
            (with_requests(7.0, 0.0, 1.0), with_requests(9.0, 0.2, 5.0)),
            FAILED,
            "20 % of its requests fail",
        ),
    ],
)
def test_first_requests(shots: tuple[Snapshot, ...], state: CheckState, words: str) -> None:
    assert verdict("requests", *shots) == (state, words)


@pytest.mark.parametrize(
    ("own", "others", "state", "words"),
    [
        (0.5, (0.6, 0.62, 0.1), OK, "50 %, pool 60 %"),
        (0.1, (0.6, None), WAITING, "10 %, pool 60 %"),
        (None, (0.6,), WAITING, "not known yet, pool 60 %"),
        (0.1, (None,), WAITING, "the pool's is not known"),
        (0.0, (0.02,), OK, "the pool has hardly any (2 %)"),
    ],
)
def test_hit_rate(own: float | None, others: tuple[float | None, ...], state: CheckState, words: str) -> None:
    pool = [worker(f"o{n}", Role.PREFILL, hit_rate=rate) for n, rate in enumerate(others)]
    shot = snapshot(back(Role.PREFILL, hit_rate=own), *pool)
    assert verdict("hit rate", shot) == (state, words)
