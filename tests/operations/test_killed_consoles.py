"""kill -9 at random moments of set, drain and undo: file whole, log readable, and the next start tells."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pdtop.cluster.launch import watch_file
from pdtop.cluster.monitor import Monitor
from pdtop.operations.arming import Arming
from pdtop.operations.audit import AuditLog
from pdtop.operations.model import LogEntry
from pdtop.operations.operator import Operator
from pdtop.operations.state import folder_of
from tests.operations.killed_consoles import MOMENTS


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.operations.killed_consoles", str(root)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True] * MOMENTS, done.stderr
    return [root / str(number) for number in range(MOMENTS)]


def audit_of(place: Path) -> AuditLog:
    watched = watch_file(place / "config.toml")
    return AuditLog(folder_of(watched.targets, place / "config.toml", place / "state"))


def lines_of(place: Path) -> list[bytes]:
    """Of the log; one that was killed early enough, as on a busy machine, has not begun anything."""
    path = next((place / "state").rglob("audit.jsonl"), None)
    return path.read_bytes().split(b"\n") if path is not None else [b""]


def test_the_file_is_whole_old_or_new(places: list[Path]) -> None:
    """Beside the threshold and the table of one drained worker it is byte for byte what it was."""
    for place in places:
        before, text = (place / "before.toml").read_text(), (place / "config.toml").read_text()
        value = re.search(r"^cache_aware_threshold = (0\.\d\d)  # tuned in May$", text, re.MULTILINE)
        assert value is not None, text
        restored = text.replace(value[0], "cache_aware_threshold = 0.30  # tuned in May")
        restored = re.sub(r'\n?\[decode\.worker\."[\d.:]+"\]\ndrain = true\n', "", restored)
        assert restored.split() == before.split()
        assert watch_file(place / "config.toml").config is not None


def test_every_line_of_the_log_but_a_torn_last_one_can_be_read(places: list[Path]) -> None:
    for place in places:
        *lines, last = lines_of(place)
        for line in lines:
            json.loads(line)
        audit = audit_of(place)
        assert bool(audit.entries()) is bool(lines)
        assert audit.skipped == (last != b"")


def test_the_next_start_says_what_was_in_flight_and_ends_it(places: list[Path]) -> None:
    told = 0
    for place in places:
        in_flight: tuple[LogEntry, ...] = audit_of(place).in_flight()
        watched = watch_file(place / "config.toml")
        monitor = Monitor(watched.targets, loaded=watched.loaded)
        operator = Operator(
            monitor, path=place / "config.toml", arming=Arming(False, "--write"), root=place / "state"
        )
        notices = operator.view().notices
        assert len(notices) == len(in_flight)
        assert all("pdtop was killed before this had ended" in notice for notice in notices)
        assert audit_of(place).in_flight() == ()
        outcomes = {entry.id: entry.outcome for entry in operator.log()}
        assert {outcomes[entry.id] for entry in in_flight} <= {"failed", "partly done"}
        assert not operator.view().read_only  # the lock of a dead one is free
        told += len(in_flight)
        operator.close()
    assert told >= MOMENTS // 4
