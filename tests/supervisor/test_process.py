"""Processes of an engine: bound to this one's life, whole groups ended, output passed on, and the program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pdtop.config.schema import Config, Server
from pdtop.gateway.lifecycle import FOLLOW_PARENT
from pdtop.supervisor.__main__ import metrics_port, run
from pdtop.supervisor.process import EngineProcess
from tests.supervisor.scenes import ENGINES, File, free_ports, two_ports

_PARENT = """
import asyncio, os, signal, sys
from pdtop.supervisor.process import EngineProcess
async def main():
    flags = ["--host", "127.0.0.1", "--port", "0", "--prometheus-port", "0", "--prometheus-host", "127.0.0.1"]
    said = asyncio.Event()
    child = EngineProcess.start(
        sys.executable, "smg.launch_router", flags, (), dict(os.environ), lambda line: said.set()
    )
    await said.wait()
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def started(code: str, said: list[str]) -> EngineProcess:
    """A module of the engine's that is nothing but ``code``."""
    environ = {**os.environ, "PYTHONPATH": str(ENGINES)}
    return EngineProcess.start(sys.executable, "code_of_test", ["--", code], (), environ, said.append)


def test_a_child_goes_when_its_parent_is_killed() -> None:
    environ = {**os.environ, "PYTHONPATH": str(ENGINES)}
    parent = subprocess.run([sys.executable, "-c", _PARENT], env=environ, capture_output=True, timeout=20)
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)
    assert dead(pid)


def dead(pid: int) -> bool:
    """Gone, or nothing but an entry that nobody has read yet."""
    for _ in range(100_000):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        os.sched_yield()
    return False


async def test_lines_are_passed_on_also_long_and_unfinished_ones() -> None:
    said: list[str] = []
    child = started("import sys; sys.stdout.write('one\\n' + 'x' * 200_000 + '\\nlast')", said)
    await child.wait()
    assert (child.code, child.how) == (0, "it ended with code 0")
    assert said[0] == "one"
    assert "".join(said[1:-1]) == "x" * 200_000
    assert said[-1] == "last"


async def test_what_it_started_ends_with_it() -> None:
    said: list[str] = []
    child = started(
        "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()", said
    )
    await child.wait()
    assert child.code == 1  # its standard input is empty
    assert dead(int(said[0]))


async def test_how_it_ended() -> None:
    child = started("import time; time.sleep(600)", [])
    assert child.how == "it runs"
    child.kill()
    await child.wait()
    assert child.how == "it was ended by SIGKILL"
    child.kill()
    child.terminate()


def test_the_program_from_start_to_sigterm(tmp_path: Path) -> None:
    file = File(tmp_path / "config.toml", "smg", two_ports())
    (status,) = free_ports(1)
    file.further = ""
    file.write()
    file.path.write_text(file.path.read_text().replace("[server]", f"[server]\nstatus_port = {status}"))
    environ = {**os.environ, "PYTHONPATH": f"{ENGINES}:{Path.cwd()}"}
    words = [sys.executable, "-m", "pdtop.supervisor", str(file.path)]
    process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        places = json.loads(process.stdout.readline())
        assert places == {
            "url": f"http://127.0.0.1:{file.port}",
            "metrics_url": f"http://127.0.0.1:{file.metrics_port}/metrics",
            "status_url": f"http://127.0.0.1:{status}/supervisor",
        }
        for line in process.stderr:
            if "smg serves" in line:
                break
        told = asyncio.run(page(status))
        assert told["state"] == "serving"
        assert told["config"] == str(file.path)
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=20)
        assert "told to end: 0 connections finish, at most 180 s" in rest
        assert process.returncode == 0
        assert not Path(f"/proc/{told['pid']}").exists()
    finally:
        process.kill()
        process.wait()


def test_as_a_child_it_ends_at_once_with_its_parent(tmp_path: Path) -> None:
    first, second, status = free_ports(3)
    file = File(tmp_path / "config.toml", "smg", (first, second))
    file.write()
    file.path.write_text(file.path.read_text().replace("[server]", f"[server]\nstatus_port = {status}"))
    environ = {**os.environ, "PYTHONPATH": f"{ENGINES}:{Path.cwd()}", FOLLOW_PARENT: "1"}
    words = [sys.executable, "-m", "pdtop.supervisor", str(file.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stderr is not None
            assert any("smg serves" in line for line in process.stderr)
            pid = asyncio.run(page(status))["pid"]
            process.stdin.close()
            assert process.wait(timeout=20) == 0
            assert not Path(f"/proc/{pid}").exists()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("url", "flag"),
    [
        (None, ()),
        ("http://127.0.0.1:29000/metrics", ("--metrics-port", "29000")),
        ("http://127.0.0.1:30000/metrics", ()),  # the port that it has anyway
        ("http://127.0.0.1/metrics", ()),
        ("http://127.0.0.1:99999/metrics", ()),
    ],
)
def test_the_embedded_router_has_the_metrics_port_of_the_file(url: str | None, flag: tuple[str, ...]) -> None:
    assert metrics_port(Config(server=Server(port=30000, metrics_url=url))) == flag


async def page(port: int) -> dict[str, object]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /supervisor HTTP/1.0\r\nhost: x\r\n\r\n")
    body = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    await writer.wait_closed()
    found: dict[str, object] = json.loads(body)
    return found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[server]\nengine = "external"', "somebody else runs that router"),
        ("[server]\nport = 'x'", "server.port"),
        ('[server]\nengine = "smg"\nengine_python = "/no/python"', "smg is not installed for /no/python"),
        ('[server]\nengine = "embedded"', "further flags are for smg and sglang-router"),
    ],
)
def test_what_cannot_be_run_is_said(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert run(path, ["--log-level", "warn"], environ={}) == 2
    assert words in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ENGINES))
    (port,) = free_ports(1)
    file = File(tmp_path / "config.toml", "smg", (port, port))
    file.write()
    assert run(file.path, environ={}) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
