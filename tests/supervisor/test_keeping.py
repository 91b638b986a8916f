"""Keeping one run as the file says, against routers in memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pdtop.config.schema import Config
from pdtop.supervisor.engines import SGLANG_ROUTER, SMG, Engine
from pdtop.supervisor.keeping import Keeper, Usable
from tests.cluster.virtual_time import run
from tests.routers.model_router import ModelRouter, reply

P1, D1, D2 = "10.0.0.1:30001", "10.0.1.1:30001", "10.0.1.2:30001"


def config(**tables: dict[str, Any]) -> Config:
    base: dict[str, dict[str, Any]] = {"prefill": {"workers": [P1]}, "decode": {"workers": [D1, D2]}}
    return Config.model_validate({**base, **{k: {**base.get(k, {}), **v} for k, v in tables.items()}})


def router(engine: Engine, *workers: str) -> ModelRouter:
    made = ModelRouter(engine.name)
    for worker in workers:
        made.put(f"http://{worker}", "prefill" if worker == P1 else "decode")
    return made


def keeper(
    engine: Engine, there: ModelRouter, started_with: Config, environ: Mapping[str, str] | None = None
) -> Keeper:
    return Keeper(
        engine, there.ask, started_with, environ or {}, clock=lambda: asyncio.get_running_loop().time()
    )


DRAINED = config(decode={"worker": {D2: {"drain": True}}})


def test_sglang_router_is_told_through_its_api() -> None:
    there = router(SGLANG_ROUTER, P1, D1, D2)

    async def main() -> None:
        kept = keeper(SGLANG_ROUTER, there, config())
        assert await kept.keep(DRAINED) == (f"{D2} taken out: drain",)
        assert there.workers.keys() == {f"http://{P1}", f"http://{D1}"}
        assert await kept.keep(DRAINED) == ()
        assert await kept.keep(config()) == (f"{D2} added: no longer drained",)
        assert kept.taken_out == {D2}

    run(main())
    assert there.writes == ["DELETE /workers/id-3", "POST /workers"]


def test_what_smg_reads_from_its_file_is_left_to_it_for_a_while() -> None:
    there = router(SMG, P1, D1, D2)

    async def main() -> None:
        kept = keeper(SMG, there, config())
        assert await kept.keep(DRAINED) == ()
        await asyncio.sleep(2.0)
        assert await kept.keep(DRAINED) == ()
        await asyncio.sleep(2.0)  # somebody else had added it: no file takes it out
        assert await kept.keep(DRAINED) == (f"{D2} taken out: drain",)
        del there.workers[f"http://{D1}"]
        await asyncio.sleep(60.0)
        assert await kept.keep(DRAINED) == ()  # its file brings it back

    run(main())
    assert there.writes == ["DELETE /workers/id-3"]


def test_a_worker_with_a_key_of_its_own_is_added_with_it() -> None:
    there = router(SMG, P1, D1)
    given = config(decode={"worker": {D2: {"api_key_env": "OWN"}}})

    async def main() -> None:
        kept = keeper(SMG, there, given, {"OWN": "own-key", "PDTOP_API_KEY": "router-key"})
        assert await kept.keep(given) == (f"{D2} added: not in the router",)

    run(main())
    assert there.bodies[0]["api_key"] == "own-key"


def test_health_settings_are_changed_at_smg_once() -> None:
    there = router(SMG, P1, D1)
    after = config(decode={"workers": [D1]}, health={"interval_secs": 3})

    async def main() -> None:
        kept = keeper(SMG, there, config(decode={"workers": [D1]}))
        assert await kept.keep(after) == (f"{P1} changed: [health]", f"{D1} changed: [health]")
        assert await kept.keep(after) == ()

    run(main())
    assert there.bodies == [{"health": {"check_interval_secs": 3}}] * 2


def test_the_same_failing_action_is_not_repeated_at_once() -> None:
    there = router(SGLANG_ROUTER, P1, D1)
    there.dead.add(f"http://{D2}")

    async def main() -> list[int]:
        kept, posts = keeper(SGLANG_ROUTER, there, config()), []
        for _ in range(30):
            await kept.keep(config())
            posts.append(there.writes.count("POST /workers"))
            await asyncio.sleep(5.0)
        return posts

    posts = run(main())
    assert posts[0] == 1
    assert 3 <= posts[-1] <= 5


def test_the_last_worker_of_a_pool_goes_if_the_file_says_so() -> None:
    there = router(SGLANG_ROUTER, P1, D1)
    given = config(decode={"workers": [D1], "worker": {D1: {"drain": True}}})
    assert run(keeper(SGLANG_ROUTER, there, given).keep(given)) == (f"{D1} taken out: drain",)


def test_workers_that_the_file_never_named_are_left_alone() -> None:
    there = router(SGLANG_ROUTER, P1, D1, D2, "10.9.9.9:1")
    assert run(keeper(SGLANG_ROUTER, there, config()).keep(config())) == ()


def test_before_the_first_request_only_drained_workers_are_taken_out() -> None:
    there = router(SGLANG_ROUTER, P1, D2)
    assert run(keeper(SGLANG_ROUTER, there, DRAINED).keep(DRAINED, first=True)) == (f"{D2} taken out: drain",)
    assert there.writes == ["DELETE /workers/id-2"]


def test_usable_workers_are_counted_by_pool() -> None:
    there = router(SMG, P1, D1, D2)
    there.workers[f"http://{D2}"] |= {"status": "not_ready", "is_healthy": False}
    assert run(keeper(SMG, there, config()).usable()) == Usable(1, 1)
    there.answering = lambda *_: reply(500)
    assert run(keeper(SMG, there, config()).usable()) is None
    (words,) = run(keeper(SMG, there, config()).keep(config()))
    assert words.startswith("its worker list cannot be read")
