"""Changing the published routers over simulated workers: every trap of their admin APIs as it really is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pdtop.cluster.address import Address
from pdtop.cluster.http import BearerKey, Dialler
from pdtop.cluster.model import Role
from pdtop.cluster.readings import Answer
from pdtop.config.schema import Config
from pdtop.routers.change import Result
from pdtop.routers.control import Control, Controlled, RawWorker, WorkerSpec
from pdtop.routers.detect import DIALECTS
from pdtop.routers.flags import command_line
from pdtop.simulator.worker import SimWorker
from tests.real_routers.launcher import EACH_ENGINE, PYTHON, SGLANG_ROUTER, SMG, Engine, Launched, launched
from tests.simulator.support import DECODE, PREFILL, workers

pytestmark = EACH_ENGINE

NOWHERE = "http://127.0.0.1:9"
API_KEY = "sk-test-router-key"
ADMIN_KEY = "sk-test-admin-key"


@asynccontextmanager
async def controlled(engine: Engine, router: Launched, key: str | None = None) -> AsyncIterator[Control]:
    address = Address.parse(router.url)
    async with Dialler() as dialler:

        async def ask(method: str, path: str, content: bytes | None) -> Answer:
            bearer = BearerKey(key) if key else None
            return await dialler.request(method, address, path, timeout_s=5.0, key=bearer, content=content)

        yield Control(ask, DIALECTS[engine.name], "R1")


def spec_of(worker: SimWorker) -> WorkerSpec:
    return WorkerSpec(
        worker.url,
        Role.PREFILL if worker.spec.role == "prefill" else Role.DECODE,
        worker.bootstrap_port if worker.spec.role == "prefill" else None,
    )


async def listed(control: Control) -> dict[str, RawWorker]:
    found = await control.list()
    assert not isinstance(found, Controlled), found
    return {worker.url: worker for worker in found}


async def test_add_twice_remove_and_add_again(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, DECODE, PREFILL) as running,
        launched(engine, running[:2], tmp_path / "log") as router,
        controlled(engine, router) as control,
    ):
        worker = running[2]
        spec = replace(spec_of(worker), priority=60, cost=2.0, labels={"zone": "a"})
        added = await control.add(spec, api_key=None)
        assert (added.result, added.problem) == (Result.DONE, ""), added
        shown = (await listed(control))[worker.url]
        assert (shown.worker_id, shown.usable, shown.spec) == (added.worker_id, True, spec)

        spelled = replace(spec, url=worker.url.replace("127.0.0.1", "localhost") + "/")
        again = await control.add(spelled, api_key=None)
        assert (again.result, again.worker_id) == (Result.DONE, added.worker_id)
        assert {call.method for call in again.calls} == {"GET"}
        assert len(await listed(control)) == 3

        removed = await control.remove(shown.worker_id, worker.url)
        assert removed.result is Result.DONE, removed
        left = (await listed(control)).get(worker.url)
        if engine is SMG:
            assert left is not None
            assert left.draining
            twice = await control.remove(shown.worker_id, worker.url)
            assert (twice.result, [call.method for call in twice.calls]) == (Result.DONE, ["GET"])
        else:
            assert left is None

        back = await control.add(spec, api_key=None)
        assert back.result is Result.DONE, back
        # Once, and not while smg still refused it with 409.
        assert [call.status for call in back.calls if call.method == "POST"] == [202]
        shown = (await listed(control))[worker.url]
        assert (shown.usable, shown.spec) == (True, spec)


async def test_the_role_that_the_list_shows_counts(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        launched(engine, running, tmp_path / "log") as router,
        controlled(engine, router) as control,
    ):
        wrong = WorkerSpec(running[1].url, Role.PREFILL, 8998)
        found = await control.add(wrong, api_key=None)
        assert (found.result, found.problem) == (Result.FAILED, "mismatch")
        assert "listed as decode, not as prefill" in found.words
        port = replace(spec_of(running[0]), bootstrap_port=1)
        found = await control.add(port, api_key=None)
        assert f"bootstrap port there is {running[0].bootstrap_port}, not 1" in found.words


async def test_a_worker_that_cannot_be_reached(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        launched(engine, running, tmp_path / "log") as router,
        controlled(engine, router) as control,
    ):
        found = await control.add(WorkerSpec(NOWHERE, Role.DECODE), api_key="sk-secret", read_back_s=1.0)
        assert found.result is Result.ACCEPTED_NOT_APPLIED
        assert "accepted (202), but after 1 s the router has not registered it" in found.words
        assert "127.0.0.1:9 answers /health" in found.fix
        assert "sk-secret" not in repr(found)
        assert len(await listed(control)) == 2


async def test_changes(engine: Engine, tmp_path: Path) -> None:
    async with (
        workers(PREFILL, DECODE) as running,
        launched(engine, running, tmp_path / "log") as router,
        controlled(engine, router) as control,
    ):
        worker_id = (await listed(control))[running[1].url].worker_id
        found = await control.change(worker_id, {"priority": 7, "labels": {"zone": "b"}})
        assert found.result is Result.DONE, found
        assert ("running requests from 0" in found.words) is (engine is SGLANG_ROUTER)
        spec = (await listed(control))[running[1].url].spec
        assert spec is not None
        assert (spec.priority, spec.labels) == (7, {"zone": "b"})
        health = await control.change(worker_id, {"health": {"check_interval_secs": 3}})
        assert health.result is (Result.DONE if engine is SMG else Result.FAILED)


@pytest.mark.parametrize(
    ("admin", "key", "fix"),
    [
        (False, None, "--api-key) in $PDTOP_ADMIN_KEY, or in $PDTOP_API_KEY"),
        (False, "wrong", "--api-key) in $PDTOP_ADMIN_KEY, or in $PDTOP_API_KEY"),
        (True, API_KEY, "--control-plane-api-keys) in $PDTOP_ADMIN_KEY"),
    ],
)
async def test_a_wrong_key_changes_nothing(
    engine: Engine, admin: bool, key: str | None, fix: str, tmp_path: Path
) -> None:
    args = ["--api-key", API_KEY]
    if admin:
        args += ["--control-plane-api-keys", f"ops:ops:admin:{ADMIN_KEY}"]
    async with (
        workers(PREFILL, DECODE, DECODE) as running,
        launched(engine, running[:2], tmp_path / "log", args=args) as router,
        controlled(engine, router, key) as wrong,
        controlled(engine, router, ADMIN_KEY if admin else API_KEY) as right,
    ):
        before = await listed(right)
        some_id = before[running[1].url].worker_id
        for found in (
            await wrong.add(spec_of(running[2]), api_key=API_KEY),
            await wrong.remove(some_id, running[1].url),
            await wrong.change(some_id, {"priority": 1}),
        ):
            assert (found.result, found.problem) == (Result.FAILED, "auth"), found
            assert "401" in found.words
            assert fix in found.fix
        assert (await listed(right)).keys() == before.keys()
        assert (await right.add(spec_of(running[2]), api_key=API_KEY)).result is Result.DONE


async def test_the_command_line_from_a_config_is_taken(engine: Engine, tmp_path: Path) -> None:
    """All flags that pdtop writes exist there, and the router starts with them."""
    async with workers(PREFILL, DECODE, DECODE) as running:
        prefill, first, drained = (worker.url.removeprefix("http://") for worker in running)
        table = {first: {}, drained: {"drain": True}}
        config = Config.model_validate(
            {
                "server": {"request_timeout_secs": 60.0},
                "prefill": {
                    "workers": [prefill],
                    "worker": {prefill: {"bootstrap_port": running[0].bootstrap_port}},
                    "cache_aware_threshold": 1.0,
                    "balance_abs_threshold": 8,
                    "cache_match_threshold": 0.5,
                },
                "decode": {"workers": [first, drained], "worker": table, "policy": "random"},
                "health": {
                    "interval_secs": 0.4,
                    "timeout_secs": 1.6,
                    "unhealthy_threshold": 4,
                    "healthy_threshold": 1,
                },
            }
        )
        argv = command_line(config, engine.name)
        flags = list(argv[argv.index("--request-timeout-secs") :])
        async with (
            launched(engine, [], tmp_path / "log", args=flags, expected=2) as router,
            controlled(engine, router) as control,
        ):
            found = await listed(control)
            assert found.keys() == {running[0].url, running[1].url}
            assert found[running[0].url].listed.bootstrap_port == running[0].bootstrap_port


async def test_power_of_two_refuses_to_start_with_one_worker(engine: Engine, tmp_path: Path) -> None:
    config = Config.model_validate(
        {"decode": {"workers": ["127.0.0.1:9"], "policy": "power_of_two"}, "server": {"host": "127.0.0.1"}}
    )
    argv = command_line(config, engine.name, base=(str(PYTHON), "-m", engine.module, "--port", "9"))
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 20.0)
    assert process.returncode == 1
    assert b"requires at least 2 decode workers" in output
