"""Taking back: the very bytes if nobody wrote since, else our keys under others' changes, else nothing."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from pdtop.config.edit import Edit, apply_edits, edit, typed_edit
from pdtop.config.encoding import encode
from pdtop.config.load import Loaded, load_bytes
from pdtop.operations.audit import Attempt, AuditLog
from pdtop.operations.backups import Backups
from pdtop.operations.model import FileChange, KeyChange, LogEntry, Outcome
from pdtop.operations.state import StateFolder
from pdtop.operations.undoing import aftermath, file_change, last_undoable, undo

PATH = Path("config.toml")
BASE = b"""\xef\xbb\xbf# cluster of the day\r
[prefill]\r
workers = [\r
    "10.0.1.11:30001",  # node-7\r
    "10.0.1.12:30001",\r
]\r
cache_aware_threshold = 0.30 # was 0.5\r
\r
[prefill.worker."10.0.1.12:30001"]\r
weight = 1e0\r
rack = 'r2'\r
\r
[health]\r
interval_secs = 5\r
"""
THRESHOLD = typed_edit("set", "prefill.cache_aware_threshold", "0.4")
DRAIN = edit("set", ["prefill", "worker", "10.0.1.11:30001", "drain"], True)
ADD = edit("append", "prefill.workers", "10.0.1.13:30001")
REMOVE = [
    edit("remove", "prefill.workers", "10.0.1.12:30001"),
    edit("unset", ["prefill", "worker", "10.0.1.12:30001"]),
]
INTERVAL = edit("set", "health.interval_secs", 9)  # by somebody else


def loaded(raw: bytes) -> Loaded:
    return load_bytes(PATH, raw)


def edited(before: Loaded, *edits: Edit) -> Loaded:
    return loaded(encode(apply_edits(before.text, edits), bom=before.bom))


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    return Backups(StateFolder(tmp_path, "prod"))


def entry_of(change: FileChange | None) -> LogEntry:
    return LogEntry("1", 0.0, "u", "h", "", "c", "set", "t", outcome="done", undoable=True, change=change)


def made(backups: Backups, *edits: Edit, base: bytes = BASE) -> tuple[Loaded, LogEntry]:
    """The file after our change, and its entry."""
    before = loaded(base)
    after = edited(before, *edits)
    return after, entry_of(file_change(before, after, backups.keep(before.raw, before.digest)))


@pytest.mark.parametrize("edits", [[THRESHOLD], [DRAIN], [ADD], REMOVE, [THRESHOLD, DRAIN, *REMOVE]])
def test_the_bytes_come_back_while_nobody_else_wrote(backups: Backups, edits: list[Edit]) -> None:
    after, entry = made(backups, *edits)
    undone = undo(after, entry, backups)
    assert (undone.kind, undone.raw, undone.edits) == ("bytes", BASE, ())


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ([THRESHOLD], "prefill.cache_aware_threshold 0.4 → 0.30"),
        ([DRAIN], 'prefill.worker."10.0.1.11:30001".drain true → not set'),
        ([ADD], 'prefill.workers - "10.0.1.13:30001"'),
        (
            REMOVE,
            'prefill.workers + "10.0.1.12:30001", '
            'prefill.worker."10.0.1.12:30001".weight not set → 1e0, '
            "prefill.worker.\"10.0.1.12:30001\".rack not set → 'r2'",
        ),
    ],
)
def test_under_changes_of_others_our_keys_come_back(backups: Backups, edits: list[Edit], words: str) -> None:
    after, entry = made(backups, *edits)
    theirs = edited(after, INTERVAL)
    undone = undo(theirs, entry, backups)
    assert (undone.kind, undone.words) == ("edits", f"{words}; what others changed since stays")
    back = edited(theirs, *undone.edits)
    assert back.document == edited(loaded(BASE), INTERVAL).document
    if edits is not REMOVE:  # what went comes back at the end of its array and of the file
        assert back.raw == edited(loaded(BASE), INTERVAL).raw


def test_without_its_backup_the_keys_come_back(backups: Backups, tmp_path: Path) -> None:
    after, entry = made(backups, THRESHOLD)
    for path in tmp_path.rglob("config.*"):
        path.unlink()
    undone = undo(after, entry, backups)
    assert undone.kind == "edits"
    assert edited(after, *undone.edits).raw == BASE


@pytest.mark.parametrize(
    ("edits", "theirs", "words"),
    [
        (
            [THRESHOLD],
            typed_edit("set", "prefill.cache_aware_threshold", "0.5"),
            "prefill.cache_aware_threshold is 0.5 now, changed by somebody else after; nothing taken back",
        ),
        (
            [THRESHOLD, DRAIN],
            edit("unset", "prefill.cache_aware_threshold"),
            "prefill.cache_aware_threshold is not set now, changed by somebody else after; "
            "nothing taken back",
        ),
        (
            [edit("set", "server.upstream_api_key_env", "KEY")],
            edit("set", "server.upstream_api_key_env", "sk-demo-0123456789"),
            'server.upstream_api_key_env is "••••••" now, changed by somebody else after; nothing taken back',
        ),
        (
            REMOVE,
            edit("set", ["prefill", "worker", "10.0.1.12:30001", "weight"], 2),
            'prefill.worker."10.0.1.12:30001".weight is 2 now, changed by somebody else after; '
            "nothing taken back",
        ),
        (
            [ADD],
            edit("unset", "prefill.workers"),
            "prefill.workers is not set now, changed by somebody else after; nothing taken back",
        ),
        (
            [THRESHOLD],
            typed_edit("set", "prefill.cache_aware_threshold", "0.3"),
            "config.toml is as it was before already: prefill.cache_aware_threshold 0.4 → 0.30",
        ),
    ],
)
def test_what_somebody_changed_after_us_stays(
    backups: Backups, edits: list[Edit], theirs: Edit, words: str
) -> None:
    after, entry = made(backups, *edits)
    undone = undo(edited(after, theirs), entry, backups)
    assert (undone.kind, undone.raw, undone.edits) == ("refused", None, ())
    assert undone.words == words


def test_items_of_an_array_are_taken_back_one_by_one(backups: Backups) -> None:
    after, entry = made(backups, ADD, edit("remove", "prefill.workers", "10.0.1.11:30001"))
    theirs = edited(after, edit("append", "prefill.workers", "10.0.1.14:30001"))
    back = edited(theirs, *undo(theirs, entry, backups).edits)
    prefill = back.document["prefill"]
    assert isinstance(prefill, dict)
    assert prefill["workers"] == ["10.0.1.12:30001", "10.0.1.14:30001", "10.0.1.11:30001"]
    theirs = edited(theirs, edit("remove", "prefill.workers", "10.0.1.13:30001"))
    assert [one.op for one in undo(theirs, entry, backups).edits] == ["append"]


def test_an_order_comes_back_while_it_is_ours(backups: Backups) -> None:
    turned = edit("set", "a.items", [2, 1])
    after, entry = made(backups, turned, base=b"[a]\nitems = [1, 2]\n")
    theirs = edited(after, edit("set", "b", 1))
    assert edited(theirs, *undo(theirs, entry, backups).edits).document == {"a": {"items": [1, 2]}, "b": 1}
    third = edited(theirs, edit("append", "a.items", 3))
    assert undo(third, entry, backups).words.startswith("a.items is [2, 1, 3] now")


def test_a_table_that_we_made_goes_again_unless_others_use_it(backups: Backups) -> None:
    base = b"[decode]\nworkers = ['a:1']\n"
    after, entry = made(backups, edit("set", ["decode", "worker", "a:1", "drain"], True), base=base)
    assert entry.change is not None
    assert entry.change.made == (("decode", "worker"), ("decode", "worker", "a:1"))
    theirs = edited(after, edit("set", "x", 1))
    assert edited(theirs, *undo(theirs, entry, backups).edits).raw == b"x = 1\n\n" + base
    used = edited(after, edit("set", ["decode", "worker", "a:1", "weight"], 2))
    back = edited(used, *undo(used, entry, backups).edits)
    assert back.document == {"decode": {"workers": ["a:1"], "worker": {"a:1": {"weight": 2}}}}


def test_a_table_that_we_removed_comes_back_beside_those_of_others(backups: Backups) -> None:
    after, entry = made(backups, *REMOVE)
    theirs = edited(after, edit("set", ["prefill", "worker", "10.0.1.11:30001", "weight"], 2))
    prefill = edited(theirs, *undo(theirs, entry, backups).edits).document["prefill"]
    assert isinstance(prefill, dict)
    assert prefill["worker"] == {
        "10.0.1.11:30001": {"weight": 2},
        "10.0.1.12:30001": {"weight": 1.0, "rack": "r2"},
    }
    after, entry = made(backups, edit("unset", "slo"), base=b"[slo]\n[load]\n")
    theirs = edited(after, edit("set", "x", 1))
    assert edited(theirs, *undo(theirs, entry, backups).edits).document == {"x": 1, "load": {}, "slo": {}}


def test_an_empty_table_that_we_made_goes_again(backups: Backups) -> None:
    after, entry = made(backups, edit("set", "slo", {}), base=b"a = 1\n")
    theirs = edited(after, edit("set", "a", 2))
    assert edited(theirs, *undo(theirs, entry, backups).edits).document == {"a": 2}


def test_a_secret_is_in_no_entry_and_comes_back_by_bytes_only(backups: Backups) -> None:
    base = b'[server]\napi_key = "Zx9-old"\n[prefill.worker."http://u:Zx9-pw@h:1"]\nweight = 1\n'
    edits = [
        edit("set", "server.api_key", "Zx9-new"),
        edit("set", ["prefill", "worker", "http://u:Zx9-pw@h:1", "weight"], 2),
    ]
    after, entry = made(backups, *edits, base=base)
    assert entry.change is not None
    assert [key.hidden for key in entry.change.keys] == [True, True]
    assert undo(after, entry, backups).raw == base
    undone = undo(edited(after, edit("set", "a", 1)), entry, backups)
    assert undone.words == "server.api_key holds a secret, which the log does not keep; nothing taken back"


@pytest.mark.parametrize("raw", [b"[prefill\n", b"\xff\xfe"])
def test_a_broken_file_must_be_put_right_first(backups: Backups, raw: bytes) -> None:
    _, entry = made(backups, THRESHOLD)
    undone = undo(loaded(raw), entry, backups)
    assert undone.kind == "refused"
    assert undone.words.startswith("config.toml must be put right first: ")


def test_what_cannot_be_taken_back_says_why(backups: Backups) -> None:
    after, entry = made(backups, THRESHOLD)
    taken = replace(entry, undoable=False, undone_by="2")
    assert undo(after, taken, backups).words == "it was taken back already"
    assert undo(after, entry_of(None), backups).words == "it did not change config.toml"
    assert undo(after, replace(entry, undoable=False), backups).words == "it cannot be taken back"
    odd = replace(entry, change=FileChange("", "", "", (KeyChange(("a",), None, "no toml"),)))
    assert "nothing taken back" in undo(loaded(b"a = 1\n"), odd, backups).words


def test_many_keys_are_told_in_short(backups: Backups) -> None:
    after, entry = made(backups, *[edit("set", f"k{n}", n) for n in range(5)], base=b"")
    assert undo(after, entry, backups).words == ("k0 0 → not set, k1 1 → not set, k2 2 → not set and 2 more")


def test_undo_goes_one_step_further_each_time(backups: Backups, tmp_path: Path) -> None:
    log = AuditLog(StateFolder(tmp_path, "prod"))
    versions = [loaded(BASE)]
    for one in (THRESHOLD, DRAIN, ADD):
        before, after = versions[-1], edited(versions[-1], one)
        change = file_change(before, after, backups.keep(before.raw, before.digest))
        log.end(log.begin(Attempt("set", "t", change=change)), Outcome.DONE, change=change)
        versions.append(after)
    log.record(Attempt("drain", "t"), Outcome.REFUSED)
    for wanted in (2, 1, 0):
        entry = last_undoable(log.entries())
        assert entry is not None
        undone = undo(versions.pop(), entry, backups)
        assert undone.raw == versions[-1].raw == versions[wanted].raw
        assert entry.change is not None
        back = FileChange(entry.change.digest_after, entry.change.digest_before)
        log.end(log.begin(Attempt("undo", "t", undoes=entry.id)), Outcome.DONE, change=back)
    assert last_undoable(log.entries()) is None


@pytest.mark.parametrize(
    ("now", "outcome", "words", "kept"),
    [
        ("before", Outcome.FAILED, "was not changed by it", False),
        ("after", Outcome.PARTLY_DONE, "holds the change, routers may not", True),
        ("after and theirs", Outcome.PARTLY_DONE, "holds the change, routers may not", True),
        ("theirs only", Outcome.FAILED, "does not hold the change", False),
    ],
)
def test_what_a_killed_operation_left(
    backups: Backups, now: str, outcome: Outcome, words: str, kept: bool
) -> None:
    before = loaded(BASE)
    after, entry = made(backups, THRESHOLD, DRAIN)
    files = {
        "before": before,
        "after": after,
        "after and theirs": edited(after, INTERVAL),
        "theirs only": edited(before, INTERVAL),
    }
    found = aftermath(entry, files[now])
    assert found[0] is outcome
    assert found[1].startswith("pdtop was killed before this had ended; config.toml ")
    assert found[1].endswith(words)
    assert found[2] == (entry.change if kept else None)
    assert aftermath(entry_of(None), None)[0] is Outcome.FAILED


def test_a_spelling_comes_back(backups: Backups) -> None:
    spelled = b"a = 0x1F\nb = '''x\n y'''\nc = 2026-01-31 02:10:00Z\nd = {k = 1_0}\n"
    edits = [edit("set", "a", 1), edit("set", "b", "n"), edit("set", "c", 2), edit("set", "d.k", 3)]
    after, entry = made(backups, *edits, base=spelled)
    theirs = edited(after, edit("set", "e", 1))
    back = edited(theirs, *undo(theirs, entry, backups).edits)
    assert back.raw == spelled + b"e = 1\n"
    assert tomllib.loads(back.text)["a"] == 31
