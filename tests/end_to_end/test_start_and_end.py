"""The command as a process: faults at the start, signals, and the terminal that it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tui.terminal import ROOT, Terminal, modes

CLUSTER = '[prefill]\nworkers = ["127.0.0.1:1", "127.0.0.1:2"]\n[decode]\nworkers = ["127.0.0.1:3"]\n'


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "dead.toml"
    path.write_text(CLUSTER)
    return path


@pytest.fixture
def terminal(cluster: Path) -> Iterator[Terminal]:
    home = {"HOME": str(cluster.parent), "XDG_STATE_HOME": str(cluster.parent)}
    one = Terminal("pdtop", [str(cluster)], size=(80, 24), environ=home)
    yield one
    one.close()


def pdtop(*words: str | Path, pipe: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run to the end without a terminal. ``pipe``: what stands after the command."""
    command = f'"$0" -m pdtop "$@" {pipe}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_console_and_restores_the_terminal(terminal: Terminal, number: int) -> None:
    terminal.read_until(rb"127\.0\.0\.1:3")
    on = modes(terminal.output)
    assert on["1049"]
    terminal.process.send_signal(number)
    assert terminal.wait() == 128 + number
    left = modes(terminal.output)
    assert [mode for mode, is_on in left.items() if is_on and mode not in ("7", "25")] == []
    assert left["25"]  # the cursor is back
    assert terminal.attributes() == terminal.before
    assert b"Traceback" not in terminal.output
    assert terminal.output.endswith(f"ended by {signal.Signals(number).name}\r\n".encode())


def test_ctrl_c_ends_the_console_although_nothing_answers(terminal: Terminal) -> None:
    terminal.read_until(rb"127\.0\.0\.1:3")
    terminal.send(b"\x03")
    assert terminal.wait() in (0, 130)
    assert terminal.attributes() == terminal.before
    assert b"Traceback" not in terminal.output


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "the file is missing"),
        (b"", "is empty"),
        (b"[[[", "line 1"),
        (b"\xff\xfe\x00x", "pdtop: error"),
        (b"workers = 5\n[prefill]\nworkers = 7\n", "workers"),
    ],
)
def test_a_config_that_cannot_be_used(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "odd.toml"
    if content is not None:
        path.write_bytes(content)
    done = pdtop("snapshot", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_as_config(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    done = pdtop("snapshot", tmp_path / "folder.toml")
    assert done.returncode == 2
    assert "is a folder" in done.stderr


def test_without_a_terminal_the_console_says_what_to_use(cluster: Path) -> None:
    done = pdtop(cluster)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pdtop snapshot" in done.stderr


def test_nothing_reachable_is_three(cluster: Path) -> None:
    done = pdtop("snapshot", "--window", "0", cluster)
    assert done.returncode == 3
    assert done.stdout.count("refused") >= 3
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_traceback(cluster: Path) -> None:
    done = pdtop("snapshot", "--json", "--window", "0", cluster, pipe="| true")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
