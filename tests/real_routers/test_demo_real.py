"""The demo with the published routers in front: it serves, the console reads it, and nothing stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.real_routers.launcher import EACH_ENGINE, PYTHON, Engine
from tests.simulator.test_processes import LIMIT_S, get, gone, started

pytestmark = EACH_ENGINE


def test_a_demo_over_it_serves_and_is_read(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDTOP_ROUTERS_PYTHON", str(PYTHON))
    monkeypatch.setenv("PDTOP_API_KEY", "of-a-real-cluster")  # has no part in it
    args = ["--engine", engine.name, "--prefill", "1", "--decode", "2", "--rate", "8", "--dir", str(tmp_path)]
    with started("pdtop.simulator", *args) as (process, line):
        assert line["engine"] == engine.name
        status = get(line["status"])
        assert (status["state"], status["engine"], status["url"]) == ("serving", engine.name, line["router"])
        deadline = time.monotonic() + LIMIT_S
        while get(line["truth"])["counts"].get("ok", 0) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not set(get(line["truth"])["counts"]) - {"sent", "ok", "output_tokens"}
        taken = _snapshot(line["config"])
        assert [router["engine"] for router in taken["routers"]] == [engine.name]
        assert sum(worker["requests_per_s"] or 0 for worker in taken["workers"]) > 0
        assert {worker["state"] for worker in taken["workers"]} == {"ok"}
        process.terminate()
        assert process.wait(LIMIT_S) == 0
        assert gone([status["pid"], *line["pids"].values()])


def test_it_ends_with_a_demo_that_was_killed(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDTOP_ROUTERS_PYTHON", str(PYTHON))
    args = ["--engine", engine.name, "--prefill", "1", "--decode", "2", "--rate", "2", "--dir", str(tmp_path)]
    with started("pdtop.simulator", *args) as (process, line):
        pid = get(line["status"])["pid"]
        process.kill()
        process.wait()
        assert gone([pid, *line["pids"].values()])


def _snapshot(config: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "pdtop", "snapshot", "--json", "--window", "1s", config]
    done = subprocess.run(words, capture_output=True, env=os.environ, timeout=LIMIT_S, check=True)
    taken: dict[str, Any] = json.loads(done.stdout)
    return taken
