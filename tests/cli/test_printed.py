"""The audit log as lines for people and for programs."""

from __future__ import annotations

import json

from pdtop.cli.printed import log_lines, log_records
from pdtop.operations.model import FileChange, KeyChange, LogEntry
from pdtop.routers.control import Call

CHANGE = FileChange("a", "b", keys=(KeyChange(("decode", "policy"), '"random"', None),))


def entry(**more: object) -> LogEntry:
    base: dict[str, object] = {
        "id": "i1", "at": 0.0, "user": "anna", "host": "jump-1", "ssh_client": "10.9.9.9",
        "cluster": "prod-a", "operation": "unset", "target": "decode.policy",
        "outcome": "done", "words": "read back",
    }  # fmt: skip
    return LogEntry(**{**base, **more})  # type: ignore[arg-type]


def told(**more: object) -> str:
    (line,) = log_lines([entry(**more)])
    return line.partition("  ")[2]  # without the local time


def test_a_line_says_who_what_and_what_came_of_it() -> None:
    assert told() == "i1  anna@jump-1 from 10.9.9.9  unset decode.policy: done: read back"
    assert told(change=CHANGE).endswith('unset decode.policy ("random" → not set): done: read back')
    assert told(before="1", after="2", undone_by="i2").endswith("(1 → 2): done: read back; taken back")
    assert told(outcome="", words="").endswith(": not ended")
    assert told(extra={"title": "Drain \x1b[2JD2"}).endswith("Drain �[2JD2: done: read back")


def test_a_secret_is_not_in_a_line() -> None:
    hidden = FileChange("a", "b", keys=(KeyChange(("server", "api_key"), hidden=True),))
    assert told(change=hidden).endswith("unset decode.policy: done: read back")


def test_a_record_holds_everything() -> None:
    call = Call("R1", "DELETE", "/workers/1", 202, "", 0.01)
    (line,) = log_records([entry(change=CHANGE, calls=(call,))])
    found = json.loads(line)
    assert (found["time"], found["outcome"]) == ("1970-01-01T00:00:00.000Z", "done")
    assert found["calls"][0]["path"] == "/workers/1"
    assert found["change"]["keys"][0]["path"] == ["decode", "policy"]
