"""Demo and farm as processes: they come up, say where they are, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pdtop.config.load import load
from pdtop.simulator.demo import run
from tests.supervisor.scenes import ENGINES

LIMIT_S = 20.0


@contextmanager
def started(module: str, *args: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """``python -m module args`` and the JSON line it prints when it is up."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        if not line:
            pytest.fail(f"{module} did not come up: {process.stderr.read()}")
        yield process, json.loads(line)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:  # noqa: S310 - loopback
        body = answer.read()
    return json.loads(body) if body.startswith((b"{", b"[")) else body.decode()


def lives(pid: int) -> bool:
    """False for a process that is only waiting to be collected, too."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:
        return True  # no /proc here: it answered to the signal


def gone(pids: list[int]) -> bool:
    """True once none of the processes is left; False at the time limit."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if not any(map(lives, pids)):
            return True
        time.sleep(0.02)
    return False


def test_a_demo_comes_up_serves_and_ends_with_a_signal(tmp_path: Path) -> None:
    args = ["--prefill", "1", "--decode", "2", "--rate", "8", "--dir", str(tmp_path)]
    with started("pdtop.simulator", *args) as (process, line):
        config = load(Path(line["config"])).config
        assert config is not None
        assert config.server.router_url == line["router"]
        assert (line["engine"], line["status"], config.server.engine) == ("embedded", None, "embedded")
        assert [w["role"] for w in line["workers"]] == ["prefill", "decode", "decode"]
        listed = get(line["router"] + "/workers")
        assert {w["url"] for w in listed["workers"]} == {w["url"] for w in line["workers"]}
        deadline = time.monotonic() + LIMIT_S
        while get(line["truth"])["counts"].get("ok", 0) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        seen = get(line["truth"])
        assert seen["counts"]["ok"] >= 3
        assert not set(seen["counts"]) - {"sent", "ok", "output_tokens"}
        assert "smg_pd_ttft_seconds_bucket" in get(line["metrics"])
        assert set(line["pids"]) == {"prefill", "decode", "router", "load"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
        assert gone(list(line["pids"].values()))
    assert {p.name for p in tmp_path.iterdir()} >= {"config.toml", "router.log", "load.log"}


def test_children_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    args = ["--prefill", "1", "--decode", "1", "--rate", "2", "--dir", str(tmp_path)]
    with started("pdtop.simulator", *args) as (process, line):
        process.kill()
        process.wait()
        assert gone(list(line["pids"].values()))


def test_two_demos_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--prefill", "1", "--decode", "1", "--rate", "0", "--dir", str(tmp_path)]
    with started("pdtop.simulator", *args):
        before = (tmp_path / "config.toml").read_bytes()
        assert run(prefill=1, decode=1, rate=0, headless=True, directory=tmp_path) == 1
        assert (tmp_path / "config.toml").read_bytes() == before
    assert f"another demo runs in {tmp_path}" in capsys.readouterr().err


def test_an_engine_that_is_not_installed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDTOP_ROUTERS_PYTHON", "/no/python")
    assert run(engine="smg", headless=True, directory=tmp_path) == 1
    said = capsys.readouterr().err
    assert "demo: smg is not installed for /no/python ($PDTOP_ROUTERS_PYTHON)" in said
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}  # nothing was started


def test_an_engine_that_does_not_start_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDTOP_ROUTERS_PYTHON", sys.executable)
    monkeypatch.syspath_prepend(str(ENGINES))
    monkeypatch.setenv("PYTHONPATH", f"{ENGINES}:{Path.cwd()}")
    assert run(prefill=1, decode=1, engine="sglang-router", headless=True, directory=tmp_path) == 1
    assert "sglang-router refuses to start with power_of_two" in capsys.readouterr().err


def test_a_demo_ends_by_itself_and_takes_its_folder_along() -> None:
    args = ["--prefill", "1", "--decode", "1", "--rate", "0", "--duration", "0.1"]
    with started("pdtop.simulator", *args) as (process, line):
        assert process.wait(LIMIT_S) == 0
        assert gone(list(line["pids"].values()))
        assert not Path(line["dir"]).exists()


def test_the_console_is_opened_on_the_cluster_and_its_code_is_the_demos() -> None:
    seen: list[Path] = []

    def console(config: Path) -> int:
        seen.append(config)
        loaded = load(config).config
        assert loaded is not None
        assert get(loaded.server.router_url + "/readiness")["status"] == "ready"
        return 7

    assert run(prefill=1, decode=1, rate=0, open_console=console) == 7
    assert not seen[0].exists()


def test_a_console_that_stays_is_ended_by_a_signal() -> None:
    def console(config: Path) -> int:
        time.sleep(LIMIT_S)
        return 1

    assert run(prefill=1, decode=1, rate=0, duration=0.01, open_console=console) == 0


def test_a_demo_whose_router_dies_fails_with_its_name() -> None:
    with started("pdtop.simulator", "--prefill", "1", "--decode", "1", "--rate", "1") as (process, line):
        os.kill(line["pids"]["router"], signal.SIGKILL)
        assert process.wait(LIMIT_S) == 1
        assert process.stderr is not None
        assert "router ended with code -9" in process.stderr.read()


def test_a_farm_serves_many_workers_from_one_process(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    args = ["--workers", "24", "--prefill", "6", "--ranks", "2", "--config", str(config)]
    with started("pdtop.simulator.farm", *args) as (process, line):
        assert (len(line["prefill"]), len(line["decode"])) == (6, 18)
        loaded = load(config).config
        assert loaded is not None
        assert list(loaded.decode.workers) == line["decode"]
        page = get(f"http://{line['decode'][5]}/metrics")
        assert 'dp_rank="1"' in page
        assert 80_000 < len(page) < 190_000
        loads = get(f"http://{line['prefill'][0]}/v1/loads")
        assert [r["disaggregation"]["mode"] for r in loads["loads"]] == ["prefill", "prefill"]
        truth = get(f"{line['control']}/truth?worker=0")
        assert truth["role"] == "prefill"
        assert get(line["control"] + "/stats")["requests"] >= 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
