"""The case runner itself: a wrong expectation fails, an unknown key fails, every word of the form works."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cases import kind_config
from tests.cases.test_cases import SHIPPED, by_hand, case_folders, run_case, runner
from tests.cases.values import Report, Seen, equal, mismatch, unmentioned
from tests.cases.vocabulary import FINDING_KINDS, TABLES, BadCase, load_case, validate

GOOD = "[prefill]\ncache_aware_threshold = 0.3\n\n[health]\ninterval_secs = 5\n"
NEW = GOOD.replace("0.3", "0.4")
NEWER = GOOD.replace("0.3", "0.5")
BAD = GOOD.replace("0.3", "30")

Json = dict[str, object]


def case_of(tmp_path: Path, given: Json, expect: Json, **files: str) -> tuple[Json, Path]:
    """A config case and its folder; file names with ``_`` for the dot."""
    folder = tmp_path / "made"
    folder.mkdir()
    for name, text in {"good_toml": GOOD, **files}.items():
        (folder / name.replace("_", ".")).write_text(text)
    given = {"file": "config.toml", "setup": [put("good.toml")], **given}
    case: Json = {"id": "made", "kind": "config", "input": given, "expect": expect}
    (folder / "case.json").write_text(json.dumps(case))
    return load_case(folder), folder


def put(name: str, path: str = "config.toml", **more: object) -> Json:
    return {"do": "put", "from": name, "path": path, **more}


def write(at: float, name: str, how: str = "rename", **more: object) -> Json:
    return {"at": at, "do": "write", "from": name, "path": "config.toml", "how": how, **more}


def change(key: str, value: object, op: str = "set") -> Json:
    return {"do": "edit", "edits": [{"op": op, "key": key, "value": value}]}


def play(tmp_path: Path, given: Json, expect: Json, **files: str) -> None:
    case, folder = case_of(tmp_path, given, expect, **files)
    work = tmp_path / "work"
    work.mkdir()
    run_case(case, folder, work)


THRESHOLD = "prefill.cache_aware_threshold"
SAVE: Json = {"do": "save"}
CONFIRM: Json = {"do": "confirm"}


@pytest.mark.parametrize(
    ("given", "expect", "files"),
    [
        pytest.param(
            {"steps": [{"do": "no_events"}, write(1, "new.toml")]},
            {"seen_within_s": 2, "active_at": {"3": {THRESHOLD: 0.4}}, "reloads": 1},
            {"new_toml": NEW},
            id="no events",
        ),
        pytest.param(
            {"steps": [write(1, "new.toml", "in_place", keep_mtime=True)]},
            {"seen_within_s": 1, "active": {THRESHOLD: 0.4}},
            {"new_toml": NEW},
            id="same modification time and size",
        ),
        pytest.param(
            {"steps": [write(1, "bad.toml"), write(6, "newer.toml", "in_place")]},
            {
                "reload": "rejected",
                "reloads": 1,
                "active_during": {"1-6": {THRESHOLD: 0.3}},
                "active_at": {"8": {THRESHOLD: 0.5}},
                "notice_at": {"3": ["line 2", ["0.30", "0.3"]], "8": ["0.3 → 0.5"]},
                "error_shown_until_fixed": True,
                "error_mentions": ["cache_aware_threshold", "30"],
                "defaults_ever_active": False,
            },
            {"bad_toml": BAD, "newer_toml": NEWER},
            id="bad, then fixed",
        ),
        pytest.param(
            {"steps": [{"at": 1, "do": "remove", "path": "config.toml"}, write(6, "new.toml", "in_place")]},
            {
                "notice_at": {"4": [["missing", "gone"]]},
                "active_at": {"5": {THRESHOLD: 0.3}, "8": {THRESHOLD: 0.4}},
                "error_shown_until_fixed": True,
                "defaults_ever_active": False,
                "no_crash": True,
            },
            {"new_toml": NEW},
            id="removed and made again",
        ),
        pytest.param(
            {
                "setup": [
                    {"do": "mkdir", "path": "..1"},
                    put("good.toml", "..1/config.toml"),
                    {"do": "symlink", "path": "..data", "to": "..1"},
                    {"do": "symlink", "path": "config.toml", "to": "..data/config.toml"},
                ],
                "steps": [
                    {"at": 1, "do": "mkdir", "path": "..2"},
                    {"at": 1, "do": "put", "from": "new.toml", "path": "..2/config.toml"},
                    {"at": 1, "do": "symlink", "path": "..data_tmp", "to": "..2"},
                    {"at": 1, "do": "rename", "path": "..data_tmp", "to": "..data"},
                    {"at": 1, "do": "remove", "path": "..1"},
                ],
            },
            {"seen_within_s": 2, "reloads": 1, "active_at": {"3": {THRESHOLD: 0.4}}, "leftover_files": []},
            {"new_toml": NEW},
            id="ConfigMap swap",
        ),
        pytest.param(
            {"steps": [write(1, "bad.toml", "in_place"), write(1.3, "new.toml", "in_place")]},
            {"error_shown_polls_max": 0, "reloads": 1},
            {"bad_toml": BAD, "new_toml": NEW},
            id="an error on the way is not shown",
        ),
        pytest.param(
            {"steps": [change(THRESHOLD, 0.4), {"do": "disk_full"}, SAVE]},
            {
                "save": "failed",
                "file_unchanged": True,
                "file_never_empty": True,
                "leftover_files": [],
                "error_mentions": ["no space left"],
                "offers": ["diff_copy"],
                "runtime_change_sent": False,
            },
            {},
            id="disk full",
        ),
        pytest.param(
            {
                "setup": [{"do": "umask", "mode": "0077"}, put("good.toml", mode="0664")],
                "steps": [change(THRESHOLD, 0.4), SAVE],
            },
            {"save": "written", "files": {"config.toml": {"mode": "0664", "equals": "new.toml"}}},
            {"new_toml": NEW},
            id="umask",
        ),
        pytest.param(
            {
                "setup": [put("good.toml"), {"do": "chmod", "path": "config.toml", "mode": "0444"}],
                "steps": [{"do": "edit"}],
            },
            {"edit": "read_only", "edit_mentions": ["permission"], "file_unchanged": True},
            {},
            id="read only is said before typing",
        ),
        pytest.param(
            {"setup": [put("bad.toml")], "steps": [change(THRESHOLD, 0.4)]},
            {"loads": False, "edit": "refused", "edit_mentions": ["line 1"], "error_mentions": ["line 1"]},
            {"bad_toml": "[prefill\n"},
            id="broken from the start",
        ),
        pytest.param(
            {"steps": [change(THRESHOLD, 0.4), write(1, "new.toml"), SAVE, CONFIRM]},
            {
                "save": "refused",
                "shown": {"other_changes": [], "base": 0.3, "theirs": 0.5, "mine": 0.4},
                "file_equals": "new.toml",
            },
            {"new_toml": NEWER},
            id="same key",
        ),
        pytest.param(
            {"steps": [change("health.timeout_secs", 9), SAVE, CONFIRM]},
            {
                "save": "asks",
                "confirm": "written",
                "starts_with_original_bytes": True,
                "changed_lines": 1,
                "valid_toml": True,
                "contains": ["timeout_secs = 9"],
                "lines_kept": ["[health]", "interval_secs = 5"],
                "headers_in_order": ["prefill", "[health]"],
                "parsed": {"health": {"interval_secs": 5, "timeout_secs": 9}},
                "bom_count": 0,
                "lf_only_lines": 6,
            },
            {},
            id="a warning asks",
        ),
        pytest.param(
            {
                "steps": [
                    {
                        "do": "edit",
                        "edits": [
                            {
                                "op": "set_path",
                                "path": ["decode", "worker", "10.0.2.21:30001", "weight"],
                                "value_toml": "0.50",
                            },
                            {"op": "append", "key": "decode.workers", "value": "10.0.2.21:30001"},
                            {"op": "append", "key": "prefill.workers", "value": "10.0.1.11:30001"},
                        ],
                    },
                    SAVE,
                ]
            },
            {
                "save": "written",
                "contains": ['[decode.worker."10.0.2.21:30001"]\nweight = 0.50'],
                "rows": ["10.0.1.11:30001", "10.0.2.21:30001"],
                "active": {
                    "decode.worker.'10.0.2.21:30001'": {"drain": False, "weight": 0.5}
                    | dict.fromkeys(("bootstrap_port", "host", "rack", "metrics_url", "api_key_env"))
                },
                "by_hand": ["look at it"],
            },
            {},
            id="several edits in one",
        ),
        pytest.param(
            {
                "tries": [
                    {"edits": [{"op": "set", "key": THRESHOLD, "value_toml": "30"}], "why": "percent"},
                    {"edits": [{"op": "set", "key": THRESHOLD, "value": 0.8}], "why": "above the other"},
                ]
            },
            {
                "tries": [{"result": "refused", "hint_mentions": ["0.30"]}, {"result": "warned"}],
                "written_only_after_confirm": True,
                "file_unchanged": True,
            },
            {},
            id="tries",
        ),
        pytest.param(
            {
                "settings": "settings.json",
                "setup": [put("good.toml"), put("settings.json", "settings.json")],
            },
            {
                "findings": [{"kind": "secret_in_file", "mentions": ["settings.json", "api_key"]}],
                "secret_never_in_output": ["Zx9-demo"],
            },
            {"settings_json": '{"api_key": "Zx9-demo"}'},
            id="settings",
        ),
    ],
)
def test_the_form_is_understood(tmp_path: Path, given: Json, expect: Json, files: dict[str, str]) -> None:
    play(tmp_path, given, expect, **files)


@pytest.mark.parametrize(
    ("key", "wrong", "mention"),
    [
        ("save", "failed", "save: expected 'failed', got 'written'"),
        ("confirm", "written", "left out"),
        ("edit", "refused", "possible"),
        ("loads", False, "loads"),
        ("file_equals", "good.toml", "differs from good.toml"),
        ("file_unchanged", True, "file_unchanged"),
        ("changed_lines", 2, "expected 2, got 1"),
        ("lf_only_lines", 0, "expected 0"),
        ("bom_count", 1, "byte order mark"),
        ("parsed", {THRESHOLD: 0.41}, "expected 0.41, got 0.4"),
        ("contains", ["absent"], "'absent'"),
        ("lines_kept", ["cache_aware"], "no line"),
        ("headers_in_order", ["health", "prefill"], "headers_in_order"),
        ("files", {"other.toml": {"mode": "0644"}}, "is not there"),
        ("files", {"config.toml": {"mode": "0777"}}, "'0777'"),
        ("leftover_files", ["x"], "leftover_files"),
        ("reload", "rejected", "accepted"),
        ("reloads", 0, "expected 0, got 1"),
        ("active", {THRESHOLD: 0.3}, "expected 0.3, got 0.4"),
        ("active", {"prefill.nothing": 1}, "got None"),
        ("active_at", {"0": {THRESHOLD: 0.9}}, "active_at.0"),
        ("active_during", {"0-1": {THRESHOLD: 0.9}}, "active_during.0-1"),
        ("defaults_ever_active", True, "defaults_ever_active"),
        ("notice_at", {"0": ["nothing like it"]}, "not mentioned"),
        ("error_mentions", ["nothing like it"], "not mentioned"),
        ("error_shown_until_fixed", True, "no error was shown"),
        ("rows", ["a"], "rows"),
        ("findings", [{"kind": "secret_in_file"}], "no finding"),
        ("runtime_change_sent", True, "runtime_change_sent"),
        ("offers", ["diff_copy"], "diff_copy"),
        ("shown", {"other_changes": ["a.b"]}, "a.b"),
        ("secret_never_in_output", ["0.4"], "'0.4' is in the output"),
        ("starts_with_original_bytes", True, "starts_with_original_bytes"),
        ("valid_toml", False, "valid_toml"),
        ("file_never_empty", False, "file_never_empty"),
        ("edit_mentions", ["x"], "not mentioned"),
    ],
)
def test_a_wrong_expectation_fails(tmp_path: Path, key: str, wrong: object, mention: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(mention)):
        play(tmp_path, {"steps": [change(THRESHOLD, 0.4), SAVE]}, {key: wrong})


def test_a_late_or_missed_change_fails(tmp_path: Path) -> None:
    steps = [{"do": "no_events"}, write(1.05, "new.toml")]
    with pytest.raises(AssertionError, match=r"the change at 1\.05 was not in force by 1\.15"):
        play(tmp_path, {"steps": steps}, {"seen_within_s": 0.1}, new_toml=NEW)


def test_a_try_that_goes_through_fails_a_case_that_refuses_it(tmp_path: Path) -> None:
    tries = [{"edits": [{"op": "set", "key": THRESHOLD, "value": 0.4}]}]
    with pytest.raises(AssertionError, match=r"tries\[0\].*refused"):
        play(tmp_path, {"tries": tries}, {"tries": [{"result": "refused"}], "file_unchanged": True})


def test_every_key_of_the_table_has_a_check() -> None:
    checks = {name for name in dir(kind_config._Checks) if not name.startswith("_")} - {"all"}
    assert checks | kind_config.ELSEWHERE == set(TABLES["config expect"])


def broken(case: Json, place: str, key: str, value: object) -> Json:
    """A copy with one more key at a dotted place."""
    after = copy.deepcopy(case)
    table: object = after
    for part in filter(None, place.split(".")):
        table = (
            table[int(part)] if isinstance(table, list) else table[part] if isinstance(table, dict) else None
        )
    assert isinstance(table, dict)
    table[key] = value
    return after


@pytest.mark.parametrize(
    ("place", "key", "value", "mention"),
    [
        ("", "note", "x", "unknown key case.note"),
        ("input", "step", [], "unknown key input.step"),
        ("input.setup.0", "form", "x", "unknown key input.setup[0].form"),
        ("input.setup.0", "do", "copy", "unknown word 'copy'"),
        ("input.setup.0", "mode", 644, "must be text"),
        ("input.steps.0.edits.0", "op", "delete", "unknown word 'delete'"),
        ("expect", "saved", "written", "unknown key expect.saved"),
        ("expect", "save", "ok", "unknown word 'ok'"),
        ("expect", "offers", ["mail"], "unknown word 'mail'"),
        ("expect", "changed_lines", True, "must be number"),
        ("expect", "error_mentions", [3], "must be mention"),
        ("expect", "findings", [{"kind": "other"}], "unknown word 'other'"),
    ],
)
def test_an_unknown_key_anywhere_fails(place: str, key: str, value: object, mention: str) -> None:
    case = load_case(SHIPPED / "s18-set-scalar-keep-all-bytes")
    assert any(mention in sentence for sentence in validate(broken(case, place, key, value)))


@pytest.mark.parametrize(
    ("value", "mention"),
    [
        ({"atleast": 3}, "unknown key"),
        ({"at_least": "3"}, "must be a number"),
        ({"between": [1]}, "two numbers"),
        ({"one_of": 3}, "must be a list"),
        ({"at_least": 1, "equals": 2}, "together"),
        ({}, "empty value"),
        ([1], "not a list"),
    ],
)
def test_a_value_in_no_form_fails(value: object, mention: str) -> None:
    case = load_case(SHIPPED / "s01-underscore-names")
    changed = broken(case, "expect", "checks", [{"at": 0, "workers": {"w": {"running": value}}}])
    assert any(mention in sentence for sentence in validate(changed))


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"id": "x"}', '{"id": "x", "kind": "x", "input": 1, "expect": 1}']
)
def test_a_case_that_is_none_fails(tmp_path: Path, text: str) -> None:
    (tmp_path / "case.json").write_text(text)
    with pytest.raises(BadCase):
        load_case(tmp_path)


def test_the_vocabulary_is_the_one_of_the_form() -> None:
    """Every table, key and type of FORMAT.md, and nothing else."""
    tables: dict[str, dict[str, str]] = {}
    table: dict[str, str] = {}
    for line in (SHIPPED / "FORMAT.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            name = line.removeprefix("## Table ")
            table = tables.setdefault(name, {}) if name != line else {}
        elif line.startswith("| kind | meaning"):
            table = tables.setdefault("finding kinds", {})
        elif found := re.match(r"\| `([^`]+)` \| ([^|]+) \|", line):
            table[found[1]] = found[2].strip()
    assert tuple(tables.pop("finding kinds")) == FINDING_KINDS
    assert {name: keys for name, keys in tables.items() if keys} == TABLES


def test_folders_of_cases(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text("")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert [folder.name for folder in case_folders(tmp_path)] == ["a", "b"]


def test_by_hand_sentences_are_listed_and_a_missing_kind_is_said() -> None:
    assert list(by_hand({"expect": {"by_hand": ["one", "two"]}})) == ["one", "two"]
    with pytest.raises(pytest.fail.Exception, match="no runner for cases of kind none"):
        runner("none")


def test_generate_runs_in_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    seen: list[str] = []

    def run(_: Mapping[str, object], copied: Path, __: Path) -> None:
        seen.append((copied / "page.txt").read_text())

    monkeypatch.setattr("tests.cases.test_cases.runner", lambda _: run)
    case: Json = {"kind": "metrics", "input": {"generate": "echo made > page.txt"}, "expect": {}}
    (tmp_path / "1").mkdir()
    run_case(case, folder, tmp_path / "1")
    assert seen == ["made\n"]
    assert list(folder.iterdir()) == []
    (tmp_path / "2").mkdir()
    with pytest.raises(AssertionError, match="generate failed: no"):
        run_case({**case, "input": {"generate": "echo no >&2; exit 3"}}, folder, tmp_path / "2")


@pytest.mark.parametrize(
    ("expected", "actual", "good"),
    [
        (1.0, 1.0000009, True),
        (1.0, 1.0000011, False),
        (0, 0.0, True),
        (0, 1e-12, False),
        (None, None, True),
        (None, 0, False),
        (0, None, False),
        (True, 1, False),
        (1, True, False),
        ("ok", "ok", True),
        ({"between": [1, 2]}, 2, True),
        ({"between": [1, 2]}, 2.1, False),
        ({"between": [1, 2]}, None, False),
        ({"one_of": [None, 3]}, None, True),
        ({"one_of": ["a", 3]}, "b", False),
        ({"equals": 3, "not": [4]}, 3, True),
        ({"not": [0, None]}, 5, True),
        ({"not": [0, None]}, None, False),
        ({"equals": 3, "not": [3]}, 3, False),
    ],
)
def test_value_forms(expected: object, actual: object, good: bool) -> None:
    assert (mismatch(expected, actual) is None) is good


@pytest.mark.parametrize(
    ("actual", "says", "exact", "good"),
    [
        (5, True, True, True),
        (6, True, True, False),
        (6, True, False, True),
        (4, True, False, False),
        (5, False, True, False),
        (5, False, False, False),
    ],
)
def test_at_least_must_be_said(actual: float, says: bool, exact: bool, good: bool) -> None:
    reason = mismatch({"at_least": 5}, actual, says_at_least=says, exact_bound=exact)
    assert (reason is None) is good


def test_a_plain_latency_must_not_be_called_a_lower_bound() -> None:
    assert mismatch(5, 5, says_at_least=True, exact_bound=True) is not None
    assert mismatch(5, 5, says_at_least=True) is None


def test_mentions_names_and_ports() -> None:
    wanted = ["FOO", ["bar", "baz"], "at {port:D1}"]
    assert unmentioned(wanted, "foo, Baz at 4711", {"D1": 4711}) == []
    assert unmentioned(wanted, "foo at 4712", {"D1": 4711}) == [["bar", "baz"], "at {port:D1}"]
    assert equal({"a": [1, "x"]}, {"a": [1.0, "x"]})
    report = Report()
    seen = [Seen("restart", "P1 started again", worker="P1")]
    report.findings("f", [{"kind": "restart", "worker": "P1", "mentions": ["again"]}], seen)
    report.no_findings("f", [{"kind": "restart", "worker": "P2"}], seen)
    assert report.failures == []
    report.findings("f", [{"kind": "restart", "router": "R"}], seen)
    report.no_findings("f", [{"worker": "P1"}], seen)
    with pytest.raises(AssertionError, match="no finding like"):
        report.raise_failures()
    assert len(report.failures) == 2
