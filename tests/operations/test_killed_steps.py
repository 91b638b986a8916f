"""Killed at any step on the disk: what was recorded is there, what comes next is, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pdtop.config.disk import Disk
from pdtop.config.load import digest_of
from pdtop.operations.audit import NAME, AuditLog
from pdtop.operations.backups import Backups
from pdtop.operations.model import Outcome
from pdtop.operations.specs import Specs
from tests.operations.killed_steps import (
    ACTIONS,
    AFTER,
    BEFORE,
    HALF,
    KILLED,
    NEW_SPEC,
    OLD_SPEC,
    STEPS,
    VERSIONS,
    WRITE,
    folder_of,
)

Death = tuple[str, int, str, str, bool]


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> list[Death]:
    root = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.operations.killed_steps", str(root)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(name, at, when, place, killed) for name, at, when, place, killed in json.loads(done.stdout)]


def test_every_step_was_killed_at(deaths: list[Death]) -> None:
    """As many steps before as after, one write that is torn, and fewer steps than were tried."""
    for action in ACTIONS:
        mine = [(at, when) for name, at, when, _, killed in deaths if name == action.__name__ and killed]
        steps = {when: [at for at, how in mine if how == when] for when in (BEFORE, HALF, AFTER)}
        assert steps[BEFORE] == steps[AFTER] == list(range(len(steps[BEFORE])))
        assert 3 <= len(steps[BEFORE]) < STEPS
        assert steps[HALF] == [WRITE]


def test_the_log_holds_all_but_a_torn_line_and_goes_on(deaths: list[Death]) -> None:
    for name, at, when, place, killed in deaths:
        log = AuditLog(folder_of(Path(place)))
        found = log.entries()
        torn = killed and when == HALF and name in ("begin", "end")
        assert log.skipped == torn
        newest = found[-2]  # begun before anything was killed
        assert [entry.operation for entry in found[-2:]] == ["drain", "set"]
        assert found[-1].outcome == "done"
        written = not killed or at > 1 or (at == 1 and when == AFTER)
        assert len(found) == 2 + (name == "begin" and written)
        assert newest.outcome == ("done" if name == "end" and written else "")
        assert {e.id for e in log.in_flight()} == {e.id for e in found if not e.outcome}

        log.end(log.begin(KILLED), Outcome.CANCELLED)
        assert len(log.entries()) == len(found) + 1
        assert log.entries()[0].outcome == "cancelled"
        assert log.skipped == torn
        lines = (log_file(place)).read_bytes().splitlines()
        assert sum(not parses(line) for line in lines) == torn


def test_backups_are_whole_and_the_next_is_kept(deaths: list[Death]) -> None:
    for _, _, _, place, _ in deaths:
        folder = folder_of(Path(place))
        backups = Backups(folder, keep=2)
        names = {f"config.{digest_of(raw)[:16]}.toml": raw for raw in VERSIONS}
        found = {name: backups.read(name) for name in names}
        assert all(raw in (None, names[name]) for name, raw in found.items())
        assert found[f"config.{digest_of(VERSIONS[1])[:16]}.toml"] == VERSIONS[1]
        assert sum(raw is not None for raw in found.values()) in (2, 3)
        assert backups.read(backups.keep(b"new", digest_of(b"new"))) == b"new"
        assert len(list((folder.path / "backups").glob("config.*"))) == 2


def test_a_spec_is_the_old_one_or_the_new_one(deaths: list[Death]) -> None:
    for name, at, when, place, killed in deaths:
        spec = Specs(folder_of(Path(place))).recall("R1", "10.0.1.11:30001")
        renamed = not killed or at > 3 or (at == 3 and when == AFTER)
        assert spec == (NEW_SPEC if name == "remember" and renamed else OLD_SPEC)


def test_nothing_is_open_to_others(deaths: list[Death]) -> None:
    for _, _, _, place, _ in deaths:
        for path in (Path(place) / "clusters").rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path


def log_file(place: str) -> Path:
    return folder_of(Path(place), Disk()).path / NAME


def parses(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
