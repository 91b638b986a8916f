"""``pdtop router`` and ``config check --engine`` as scripts see them."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from pdtop.cli.app import arguments
from tests.cli.test_cli import PATIENCE_S, place, run, started
from tests.simulator.support import client, get
from tests.supervisor.scenes import free_ports

__all__ = ["place"]  # a fixture


async def test_the_embedded_router_runs_until_it_is_told(place: Path) -> None:
    port, metrics = free_ports(2)
    (place / "config.toml").write_text(
        f'[server]\nhost = "127.0.0.1"\nport = {port}\n'
        f'metrics_url = "http://127.0.0.1:{metrics}/metrics"\n'
        '[prefill]\nworkers = ["127.0.0.1:9"]\n[decode]\nworkers = ["127.0.0.1:9"]\n'
    )
    process = await started(place, "router")
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        told = json.loads(await process.stdout.readline())
        assert told == {
            "url": f"http://127.0.0.1:{port}",
            "metrics_url": f"http://127.0.0.1:{metrics}/metrics",
        }
        async with client() as session:
            assert len((await get(session, told["url"] + "/workers")).json["workers"]) == 2
        second = await run(place, "router")
        assert second.code == 2
        assert second.err.startswith(f"cannot listen on 127.0.0.1:{port}: ")
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("", ("nothing.toml",), "nothing.toml"),
        ("x = [", ("config.toml",), "config.toml"),
        ("", ("config.toml", "other"), "other is no flag"),
        (
            "[decode]\n",
            ("config.toml", "--", "--max-payload-size", "1"),
            "further flags are for smg and sglang-router",
        ),
        ("[decode]\n", ("--", "--max-payload-size", "1"), "further flags are for smg and sglang-router"),
        ('[server]\nengine = "external"\n', (), "somebody else runs that router"),
        (
            '[server]\nengine = "smg"\nengine_python = "/no/python"\n',
            (),
            "smg is not installed for /no/python",
        ),
    ],
)
async def test_what_cannot_run_says_why(place: Path, text: str, words: tuple[str, ...], said: str) -> None:
    (place / "config.toml").write_text(text)
    done = await run(place, "router", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err


async def test_without_a_file_it_says_how_to_name_one(place: Path) -> None:
    done = await run(place, "router")
    assert done.code == 2
    assert "which router?" in done.err


async def test_its_help_teaches(place: Path) -> None:
    said = " ".join((await run(place, "router", "--help")).out.split())
    for words in ("pdtop[smg]", "pdtop[sglang-router]", "SIGTERM", "/supervisor", "Exit codes", "embedded"):
        assert words in said


def test_flags_of_the_engine_are_left_as_they_are() -> None:
    words = ["router", "c.toml", "--", "--prefill", "a", "b"]
    assert arguments(words) == words


@pytest.mark.parametrize(("policy", "code"), [("cache_aware", 0), ("pair_aware", 2)])
async def test_check_for_an_engine(place: Path, policy: str, code: int) -> None:
    (place / "config.toml").write_text(f'[prefill]\nworkers = ["p:1"]\npolicy = "{policy}"\n')
    done = await run(place, "config", "check", "--engine", "smg")
    assert (done.code, done.err) == (code, "")
    assert "prefill.policy" in done.out
    assert ("error: smg has no prefill policy pair_aware" in done.out) is (code == 2)


async def test_a_broken_file_is_not_checked_for_an_engine(place: Path) -> None:
    (place / "config.toml").write_text("prefill.policy = 3\n")
    done = await run(place, "config", "check", "--engine", "smg")
    assert (done.code, "with engine" in done.out) == (2, False)
