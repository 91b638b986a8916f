"""The audit log: one entry an attempt, no secrets, and readable whatever happened to it."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pdtop.config.masking import MASK
from pdtop.operations import audit as audit_module
from pdtop.operations.audit import NAME, Attempt, AuditLog
from pdtop.operations.model import FileChange, KeyChange, LogEntry, Outcome
from pdtop.operations.origin import lives, origin, process_mark
from pdtop.operations.state import StateFolder, StateUnwritable
from pdtop.routers.control import Call

AT = 1_769_825_400.25  # 2026-01-31T02:10:00.250Z
KEY = ("prefill", "cache_aware_threshold")
CHANGE = FileChange("d0", "d1", "config.0.toml", (KeyChange(KEY, "0.30", "0.4"),), (("a", "b.c"),))
CALL = Call("R1", "DELETE", "/workers/17", 202, "queued", 0.25)
SSH = {"SSH_CLIENT": "10.9.8.7 50000 22", "SUDO_USER": "alice"}


class Clock:
    def __init__(self) -> None:
        self.now = AT

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path, "prod", router="http://r:1")


@pytest.fixture
def log(folder: StateFolder, clock: Clock) -> AuditLog:
    return AuditLog(folder, clock=clock, environ=SSH)


def lines(folder: StateFolder) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder.path / NAME).read_bytes().splitlines()]


def test_an_attempt_is_two_lines_and_one_entry(log: AuditLog, folder: StateFolder, clock: Clock) -> None:
    attempt = Attempt("set", "prefill.cache_aware_threshold", source="command line", change=CHANGE)
    id_ = log.begin(attempt)
    [begun] = log.entries()
    assert (begun.outcome, begun.change, begun.undoable) == ("", CHANGE, False)
    clock.now += 3
    log.end(id_, Outcome.DONE, "read back", [CALL], 2.5, change=CHANGE)
    who = origin(SSH)
    assert log.entries() == (
        LogEntry(
            id=id_,
            at=AT,
            user=who.user,
            host=socket.gethostname(),
            ssh_client="10.9.8.7",
            cluster="prod",
            operation="set",
            target="prefill.cache_aware_threshold",
            before="0.30",
            after="0.4",
            outcome="done",
            words="read back",
            source="command line",
            seconds=2.5,
            calls=(CALL,),
            undoable=True,
            change=CHANGE,
            pid=os.getpid(),
            process=process_mark(os.getpid()),
        ),
    )
    assert [line["time"] for line in lines(folder)] == [
        "2026-01-31T02:10:00.250Z",
        "2026-01-31T02:10:03.250Z",
    ]
    assert log.in_flight() == ()


def test_what_is_refused_is_one_line(log: AuditLog, folder: StateFolder) -> None:
    attempt = Attempt("drain", "10.0.2.21:30001", change=CHANGE, extra={"guard": "last_of_pool"})
    log.record(attempt, Outcome.REFUSED, "last decode worker")
    [entry] = log.entries()
    assert len(lines(folder)) == 1
    assert (entry.outcome, entry.words) == ("refused", "last decode worker")
    assert (entry.before, entry.after) == (
        "prefill.cache_aware_threshold = 0.30",
        "prefill.cache_aware_threshold = 0.4",
    )
    assert entry.extra == {"guard": "last_of_pool"}
    assert (entry.change, entry.undoable) == (None, False)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.REFUSED])
def test_whatever_changed_the_file_can_be_undone(log: AuditLog, outcome: Outcome) -> None:
    log.end(log.begin(Attempt("set", "x", change=CHANGE)), outcome, change=CHANGE)
    log.end(log.begin(Attempt("set", "x", change=CHANGE)), outcome)  # planned only
    same = FileChange("d0", "d0")
    log.end(log.begin(Attempt("drain", "x", change=CHANGE)), outcome, change=same)  # and back again
    assert [entry.undoable for entry in log.entries()] == [False, False, True]


def test_an_undo_marks_its_entry_only_if_it_changed_the_file(log: AuditLog) -> None:
    first = log.begin(Attempt("set", "x", change=CHANGE))
    log.end(first, Outcome.DONE, change=CHANGE)
    log.record(Attempt("undo", "x", undoes=first), Outcome.REFUSED, "changed by somebody else")
    failed = log.begin(Attempt("undo", "x", undoes=first, change=CHANGE))
    log.end(failed, Outcome.FAILED)
    assert log.entries()[-1].undoable
    done = log.begin(Attempt("undo", "x", undoes=first, change=CHANGE))
    log.end(done, Outcome.DONE, change=CHANGE)
    undo, *_, entry = log.entries()
    assert (entry.id, entry.undone_by, entry.undoable) == (first, done, False)
    assert (undo.undoes, undo.undoable) == (first, False)


def test_newest_come_first_and_no_more_than_asked_for(log: AuditLog) -> None:
    ids = [log.begin(Attempt("set", f"t{n}")) for n in range(100)]
    for id_ in ids:
        log.end(id_, Outcome.DONE, "w" * 2000)  # several blocks
    assert [entry.id for entry in log.entries()] == ids[::-1]
    assert [entry.outcome for entry in log.entries(7)] == ["done"] * 7
    assert [entry.id for entry in log.entries(7)] == ids[:-8:-1]
    assert log.entries(0) == ()
    assert sorted(ids) == ids  # though the clock stood still
    assert len(set(ids)) == 100


def test_there_is_no_log_before_the_first_attempt(log: AuditLog, folder: StateFolder) -> None:
    assert (log.entries(), log.in_flight(), log.skipped) == ((), (), 0)
    assert not folder.path.exists()


GARBAGE = [
    b"",
    b"   ",
    b"garbage",
    b"\xff\x00\x9b2J",
    b"[]",
    b"[" * 100_000,
    b'{"event":"begin"}',
    b'{"event":"begin","id":"x","time":"noon"}',
    b'{"event":"other","id":"x","time":"2026-01-31T02:10:00Z"}',
    b'{"event":"end","id":"nobody","time":"2026-01-31T02:10:00Z"}',
    b'{"event":"begin","id":7,"time":"2026-01-31T02:10:00Z"}',
]


def test_lines_that_make_no_sense_are_passed_by_and_counted(log: AuditLog, folder: StateFolder) -> None:
    first = log.begin(Attempt("set", "one"))
    with (folder.path / NAME).open("ab") as file:
        file.write(b"\n".join(GARBAGE) + b'\n{"event":"end","id":"' + first.encode())
    log.end(first, Outcome.DONE)
    second = log.begin(Attempt("set", "two"))
    assert [entry.id for entry in log.entries()] == [second, first]
    assert log.entries()[1].outcome == "done"
    assert log.skipped == len(GARBAGE) - 2 + 1


def test_fields_of_a_wrong_kind_are_unknown(log: AuditLog, folder: StateFolder) -> None:
    line = {
        "event": "attempt",
        "id": "x",
        "time": "2026-01-31T02:10:00.250Z",
        "user": 7,
        "ssh_client": None,
        "outcome": "done",
        "seconds": math.nan,
        "pid": True,
        "calls": [1, {"status": "200", "seconds": "x", "router": "R1"}],
        "extra": [],
        "change": {"digest_before": "a", "digest_after": "b", "keys": [{"path": ["k", 1]}], "made": []},
    }
    folder.append(NAME, json.dumps(line).encode())
    [entry] = log.entries()
    assert (entry.at, entry.user, entry.ssh_client, entry.pid) == (AT, "", "", 0)
    assert (entry.seconds, entry.extra) == (None, {})
    assert entry.calls == (Call("R1", "", "", None),)
    assert (entry.change, entry.undoable) == (None, False)


@pytest.mark.parametrize(
    "change",
    [
        {"keys": [7], "made": []},
        {"keys": [{"path": []}], "made": []},
        {"keys": [{"path": ["k"], "before": 3}], "made": []},
        {"keys": [], "made": ["k"]},
        {"keys": []},
    ],
)
def test_half_a_change_is_none(log: AuditLog, folder: StateFolder, change: dict[str, object]) -> None:
    time = "2026-01-31T02:10:00Z"
    line = {"event": "attempt", "id": "x", "time": time, "outcome": "done", "change": change}
    folder.append(NAME, json.dumps(line).encode())
    assert [(entry.change, entry.undoable) for entry in log.entries()] == [(None, False)]


SECRETS = ("sk-demo-0123456789", "Bearer abcdef123456", "hunter2-Zx9", "Zx9-known-key")


def test_no_secret_gets_into_the_log_by_any_field(folder: StateFolder) -> None:
    log = AuditLog(folder, environ={"SSH_CLIENT": SECRETS[0], "SUDO_USER": SECRETS[0]})
    log.hide({"api_key": "Zx9-known-key"}, {"server": {"url": "http://ops:hunter2-Zx9@10.0.0.1:1"}})
    for secret in SECRETS:
        keys = (
            KeyChange(("server", "note"), f'"{secret}"', None),
            KeyChange(("server", "note"), None, f'["{secret}"]'),
            KeyChange(("prefill", "worker", f"http://{secret}:1"), "1", "2"),
            KeyChange(("server", "api_key"), hidden=True),
        )
        change = FileChange("d0", "d1", "b", keys, (("prefill", secret),))
        attempt = Attempt("set", secret, secret, secret, secret, change, extra={secret: secret})
        call = Call(secret, secret, f"/workers/{secret}", 200, f"said {secret}")
        log.end(log.begin(attempt), Outcome.FAILED, f"401 for {secret}", [call], 1.0, change=change)
        log.record(attempt, Outcome.REFUSED, secret, [call])
    for value in ('"Zx9-typed"', "'Zx9-typed'"):
        for name in ("server.api_key", "server.upstream_api_key_env", 'a."b.c".token'):
            log.record(Attempt("set", name, "not set", value), Outcome.REFUSED)
    raw = (folder.path / NAME).read_bytes()
    for secret in (*SECRETS, "Zx9-typed"):
        assert secret.encode() not in raw
    assert log.skipped == 0
    entry = log.entries()[7]
    assert (entry.target, entry.words) == (MASK, f"401 for {MASK}")
    assert entry.change is not None
    assert all(key.hidden and key.before is key.after is None for key in entry.change.keys)
    assert log.entries(1)[0].before == "not set"


def test_text_from_the_network_cannot_harm_a_terminal_or_a_reader(log: AuditLog, folder: StateFolder) -> None:
    words = "\x1b[2J\n\r\x9b[/red] \ud800" + "x" * 10_000
    log.record(
        Attempt("drain", "w\n{}"), Outcome.FAILED, words, [Call("R", "GET", "/", 200, words, math.inf)]
    )
    raw = (folder.path / NAME).read_bytes()
    assert raw.count(b"\n") == 1
    assert all(byte == 10 or 32 <= byte < 127 for byte in raw)
    assert len(raw) < 6000
    [entry] = log.entries()
    assert entry.words.startswith("\x1b[2J\n\r\x9b[/red] ")
    assert len(entry.words) == 2000


def test_what_was_begun_by_a_process_that_is_gone_is_in_flight(
    log: AuditLog, folder: StateFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = log.begin(Attempt("drain", "mine"))
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    for id_, host, pid, process in [
        ("dead", socket.gethostname(), gone.pid, process_mark(os.getpid())),
        ("later process with the pid", socket.gethostname(), os.getpid(), "0:1"),
        ("no pid", socket.gethostname(), 0, ""),
        ("elsewhere", "other-host", gone.pid, ""),
    ]:
        line = {"event": "begin", "id": id_, "time": "2026-01-31T02:10:00Z"}
        folder.append(NAME, json.dumps(line | {"host": host, "pid": pid, "process": process}).encode())
    expected = ["no pid", "later process with the pid", "dead"]
    assert [entry.id for entry in log.in_flight()] == expected
    clock.now += 86_401
    assert [entry.id for entry in log.in_flight()] == ["elsewhere", *expected]
    log.end("dead", Outcome.FAILED, "pdtop was killed")
    assert [entry.id for entry in log.in_flight()] == ["elsewhere", *expected[:-1]]
    assert mine not in {entry.id for entry in log.in_flight()}


def test_who_operates_is_known_by_user_id(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = origin({"USER": "forged", "LOGNAME": "forged"})
    assert "forged" not in plain.user
    assert plain.ssh_client == ""
    assert origin({"SUDO_USER": "alice"}).user == f"{plain.user} (sudo by alice)"
    assert origin({"SUDO_USER": plain.user}).user == plain.user
    assert origin({"SSH_CONNECTION": "fe80::1 5 fe80::2 22", "SSH_CLIENT": "x"}).ssh_client == "fe80::1"
    monkeypatch.setattr(os, "geteuid", lambda: 3_999_999)
    assert origin({}).user == "uid 3999999"


def test_a_process_without_proc_is_judged_by_its_pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lives(os.getpid(), process_mark(os.getpid()))
    assert not lives(os.getpid(), "0:1")
    assert lives(os.getpid(), "?")
    monkeypatch.setattr("pdtop.operations.origin._PROC", tmp_path)
    assert process_mark(os.getpid()) == "?"
    assert lives(os.getpid(), "0:1")


def test_an_attempt_that_cannot_be_recorded_must_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = AuditLog(StateFolder(tmp_path / "file", "prod"))
    with pytest.raises(StateUnwritable):
        log.begin(Attempt("drain", "x"))
    assert log.entries() == ()


def test_several_threads_write_whole_lines(log: AuditLog, folder: StateFolder) -> None:
    def work() -> None:
        for _ in range(10):
            log.end(log.begin(Attempt("set", "x" * 300)), Outcome.DONE)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry.outcome for entry in log.entries()] == ["done"] * 40
    assert len(lines(folder)) == 80


BUSY = """
import sys
from pathlib import Path
from pdtop.operations.audit import Attempt, AuditLog
from pdtop.operations.model import Outcome
from pdtop.operations.state import StateFolder
log = AuditLog(StateFolder(Path(sys.argv[1]), "prod", router="http://r:1"))
while True:
    id_ = log.begin(Attempt("set", "x"))
    print("begun", id_, flush=True)
    log.end(id_, Outcome.DONE)
    print("ended", id_, flush=True)
"""


def test_killed_at_any_moment_nothing_that_was_recorded_is_lost(log: AuditLog, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUSY, str(tmp_path)]
    said: list[str] = []
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as busy:
        assert busy.stdout is not None
        said += [busy.stdout.readline() for _ in range(41)]
        busy.send_signal(signal.SIGKILL)
        said += busy.stdout.readlines()
    found = {entry.id: entry.outcome for entry in log.entries()}
    for line in said:
        state, id_ = line.split()
        assert id_ in found
        assert state == "begun" or found[id_] == "done"
    assert sum(not outcome for outcome in found.values()) <= 1
    assert {entry.id for entry in log.in_flight()} == {id_ for id_, outcome in found.items() if not outcome}


def test_damage_without_a_line_end_is_passed_by_and_not_held(
    log: AuditLog, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_LONGEST_LINE", 1 << 18)
    log.record(Attempt("set", "first"), Outcome.REFUSED)
    log.record(Attempt("set", "long"), Outcome.REFUSED, calls=[CALL] * 2000)  # more than a block
    with (folder.path / NAME).open("ab") as file:
        file.write(b"\0" * (1 << 20))
    log.record(Attempt("set", "last"), Outcome.REFUSED)
    assert [entry.target for entry in log.entries()] == ["last", "long", "first"]
    assert log.skipped == 1
    assert len(log.entries()[1].calls) == 2000
