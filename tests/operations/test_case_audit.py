"""Case s54: who changed what. One entry an attempt, also refused ones, with enough to undo by bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pytest

from pdtop.config.keys import split_key, value_at
from pdtop.config.load import load
from pdtop.operations.audit import NAME
from pdtop.operations.model import Drain, LogEntry, Request, SetValue, Undo
from pdtop.operations.origin import origin
from tests.operations import plant as plant_module
from tests.operations.plant import plant, virtual

CASE = json.loads(
    (Path(__file__).parents[1] / "fixtures/cases/s54-who-changed-what/case.json").read_text(encoding="utf-8")
)
SECRET = "sk-demo-0123456789"
CLIENT = "10.9.8.7"


def moment(action: Mapping[str, str]) -> float:
    return datetime.fromisoformat(action["t"]).timestamp()


def request_of(action: Mapping[str, str], worker: str) -> Request:
    """The console's request; the worker D1 of the case has another name here."""
    match action["do"].split():
        case ["set", key, _, "->", new]:
            return SetValue(split_key(key), new)
        case ["drain", "D1"]:
            return Drain((worker,))
        case ["undo"]:
            return Undo()
        case other:
            raise AssertionError(other)


def expected(action: Mapping[str, str], worker: str) -> dict[str, str]:
    """What the entry of an action must say, in the words of the case."""
    key = "prefill.cache_aware_threshold"
    match action["do"].split()[0]:
        case "set":
            said = {"target": key, "before": "0.30", "after": "0.4", "result": "accepted, not applied"}
        case "drain":
            name = f'decode.worker."{worker}".drain'
            said = {"target": worker, "before": f"{name} = not set", "after": f"{name} = true"}
            said["result"] = "refused"
        case _:
            said = {"target": key, "before": "0.4", "after": "0.30", "result": "accepted, not applied"}
    return said


def found(entry: LogEntry, line: Mapping[str, object], word: str) -> object:
    """What an entry, or its line in the file, has for a word of the case's list."""
    match word:
        case "time in UTC":
            return str(line["time"]).removesuffix("Z") if str(line["time"]).endswith("Z") else None
        case "OS user":
            return entry.user
        case "SSH client address if any":
            return entry.ssh_client
        case "cluster name":
            return entry.cluster
        case "result":
            return entry.outcome
    return getattr(entry, word)


@virtual
async def test_s54_who_changed_what(tmp_path: Path) -> None:
    """Through the console's own gate, at the times of the case; D1 is the only decode worker."""
    given, expect = CASE["input"], CASE["expect"]
    actions = given["actions"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSH_CLIENT", f"{CLIENT} 50000 22")
        patch.delenv("SSH_CONNECTION", raising=False)
        now = asyncio.get_running_loop().time()
        patch.setattr(plant_module, "EPOCH", moment(actions[0]) - now - 30.0)
        async with plant(tmp_path, engine="smg", decode=1) as cluster:
            slip = f'[server]\nupstream_api_key = "{SECRET}"  # a slip'
            cluster.write(cluster.text.replace("[server]", slip))
            original = cluster.path.read_bytes()
            worker = cluster.decode[0].key
            async with cluster.console() as console:
                for action in actions:
                    await asyncio.sleep(max(0.0, moment(action) - plant_module._Clock.time()))
                    await console.ended(await console.do(request_of(action, worker)))
                entries = console.log[::-1]
                name = console.monitor.targets.cluster
                log_file = next((tmp_path / "state").rglob(NAME))
            raw = log_file.read_bytes()

    first: dict[str, dict[str, object]] = {}
    for line in map(json.loads, raw.splitlines()):
        first.setdefault(line["id"], line)
    assert len(entries) == len(first) == expect["lines"]
    for entry, line, action in zip(entries, first.values(), actions, strict=True):
        said = expected(action, worker) | {
            "time in UTC": datetime.fromisoformat(action["t"]).strftime("%Y-%m-%dT%H:%M:%S.000"),
            "OS user": origin({}).user,
            "SSH client address if any": CLIENT,
            "cluster name": name,
        }
        assert {word: found(entry, line, word) for word in expect["each_has"]} == {
            word: said[word] for word in expect["each_has"]
        }, asdict(entry)
    assert all(word in entries[1].words for word in ("last", "decode"))

    after = load(cluster.path)
    assert after.config is not None
    assert {key: value_at(after.config, key) for key in expect["after_undo"]} == expect["after_undo"]
    assert (cluster.path.read_bytes() == original) is expect["undo_restores_bytes"]
    assert (SECRET.encode() not in raw) is expect["no_secret_in_log"]
    assert (entries[0].undone_by, entries[0].undoable) == (entries[2].id, False)
