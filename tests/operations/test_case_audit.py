"""Case s54: who changed what. One entry an attempt, also refused ones, with enough to undo by bytes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from pdtop.config.disk import Disk, replace_file
from pdtop.config.edit import Edit, apply_edits, typed_edit
from pdtop.config.encoding import encode
from pdtop.config.keys import value_at
from pdtop.config.load import load, load_bytes
from pdtop.config.save import EditSession
from pdtop.config.save import Outcome as Saved
from pdtop.operations.audit import NAME, Attempt, AuditLog
from pdtop.operations.backups import Backups
from pdtop.operations.model import LogEntry, Outcome
from pdtop.operations.origin import origin
from pdtop.operations.state import StateFolder
from pdtop.operations.undoing import file_change, last_undoable, undo

CASE = json.loads(
    (Path(__file__).parents[1] / "fixtures/cases/s54-who-changed-what/case.json").read_text(encoding="utf-8")
)
KEY = "sk-demo-0123456789"
ENVIRON = {"SSH_CLIENT": "10.9.8.7 50000 22"}
FILE = f"""# threshold tuned on Friday
[server]
upstream_api_key = "{KEY}"   # a slip
[prefill]
workers = ["10.0.1.11:30001"]
cache_aware_threshold = 0.30   # note
[decode]
workers = ["10.0.2.21:30001"]
""".encode()


class Desk:
    """What operates: the editing session, the log, the backups, on the clock of the case."""

    def __init__(self, root: Path) -> None:
        self.path = root / "config.toml"
        self.path.write_bytes(FILE)
        self.at = 0.0
        folder = StateFolder(root / "state", "prod", self.path)
        self.log_file = folder.path / NAME
        self.backups = Backups(folder, clock=lambda: self.at)
        self.log = AuditLog(folder, clock=lambda: self.at, environ=ENVIRON)
        self.log.hide(load(self.path).document)

    def play(self, action: Mapping[str, str]) -> None:
        self.at = datetime.fromisoformat(action["t"]).timestamp()
        match action["do"].split():
            case ["set", key, _, "->", new]:
                self.change("set", key, [typed_edit("set", key, new)], action["result"])
            case ["drain", worker]:
                outcome, words = action["result"].split(": ")
                drain = Attempt("drain", worker, "drain = false", "drain = true")
                self.log.record(drain, Outcome(outcome), f"{words}; the key was {KEY}")
            case ["undo"]:
                self.undo()
            case other:
                raise AssertionError(other)

    def change(self, operation: str, target: str, edits: list[Edit], words: str) -> None:
        before = load(self.path)
        after = load_bytes(self.path, encode(apply_edits(before.text, edits), bom=before.bom))
        planned = file_change(before, after, self.backups.keep(before.raw, before.digest))
        id_ = self.log.begin(Attempt(operation, target, change=planned))
        session = EditSession(self.path)
        session.stage(edits)
        result = session.save()
        if result.outcome is Saved.ASKS:  # of the key in the file
            result = session.confirm()
        assert result.outcome is Saved.WRITTEN
        self.log.end(id_, Outcome.ACCEPTED_NOT_APPLIED, f"{words}: 401 to {KEY}", change=planned)

    def undo(self) -> None:
        now, entry = load(self.path), last_undoable(self.log.entries())
        assert entry is not None
        undone = undo(now, entry, self.backups)
        assert undone.raw is not None
        back = file_change(now, load_bytes(self.path, undone.raw))
        id_ = self.log.begin(Attempt("undo", entry.target, change=back, undoes=entry.id))
        replace_file(self.path, undone.raw, now.raw, Disk())
        self.log.end(id_, Outcome.DONE, undone.words, change=back)


def has(entry: LogEntry, action: Mapping[str, str], word: str) -> bool:
    """Whether an entry tells what the case calls ``word``."""
    match word:
        case "time in UTC":
            return entry.at == datetime.fromisoformat(action["t"]).timestamp()
        case "OS user":
            return entry.user == origin({}).user
        case "SSH client address if any":
            return entry.ssh_client == "10.9.8.7"
        case "cluster name":
            return entry.cluster == "prod"
        case "target":
            return entry.target == ("D1" if "drain" in action["do"] else "prefill.cache_aware_threshold")
        case "before" | "after":
            return values(action["do"])[word] == {"before": entry.before, "after": entry.after}[word]
        case "result":
            first = {"set": "accepted, not applied", "drain": "refused", "undo": "done"}
            return entry.outcome == first[entry.operation] and bool(entry.words)
    raise AssertionError(word)


def values(do: str) -> dict[str, str]:
    match do.split()[0]:
        case "set":
            return {"before": "0.30", "after": "0.4"}
        case "drain":
            return {"before": "drain = false", "after": "drain = true"}
    return {"before": "0.4", "after": "0.30"}


def times(log_file: Path) -> Iterator[str]:
    for line in log_file.read_text(encoding="ascii").splitlines():
        yield json.loads(line)["time"]


def test_s54_who_changed_what(tmp_path: Path) -> None:
    given, expect = CASE["input"], CASE["expect"]
    desk = Desk(tmp_path)
    for action in given["actions"]:
        desk.play(action)

    entries = desk.log.entries()[::-1]
    assert len(entries) == expect["lines"]
    for entry, action in zip(entries, given["actions"], strict=True):
        missing = [word for word in expect["each_has"] if not has(entry, action, word)]
        assert not missing, asdict(entry)
        assert (entry.host, entry.ssh_client) == (socket.gethostname(), "10.9.8.7")
        assert action.get("result", "").removeprefix("refused: ") in entry.words
    assert all(time.endswith("Z") for time in times(desk.log_file))

    after = load(desk.path)
    assert after.config is not None
    found = {key: value_at(after.config, key) for key in expect["after_undo"]}
    assert found == expect["after_undo"]
    assert (desk.path.read_bytes() == FILE) == expect["undo_restores_bytes"]
    assert (KEY.encode() not in desk.log_file.read_bytes()) == expect["no_secret_in_log"]
    assert (entries[0].undone_by, entries[0].undoable) == (entries[2].id, False)
    assert last_undoable(desk.log.entries()) is None
