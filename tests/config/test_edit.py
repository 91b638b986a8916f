"""Edits in each layout that is seen in the field: exactly these bytes, or a reason."""

from __future__ import annotations

import pytest

from pdtop.config.edit import Edit, apply_edits, edit, typed_edit
from pdtop.config.splice import CannotEdit

ADD = edit("append", "w", "z")


@pytest.mark.parametrize(
    ("before", "one", "after"),
    [
        pytest.param('w = ["a", "b"] # x\n', ADD, 'w = ["a", "b", "z"] # x\n', id="one line"),
        pytest.param("w = ['a','b']\n", ADD, "w = ['a','b','z']\n", id="tight, literal quotes"),
        pytest.param('w = [ "a", ]', ADD, 'w = [ "a", "z", ]', id="trailing comma on one line"),
        pytest.param('w = ["a"]\n', edit("remove", "w", "a"), "w = []\n", id="the only item"),
        pytest.param("w = []\n", ADD, 'w = ["z"]\n', id="empty"),
        pytest.param("w = [\n]\n", ADD, 'w = [\n    "z",\n]\n', id="empty, two lines"),
        pytest.param(
            "w = [\n\t# none yet\n]\n", ADD, 'w = [\n\t# none yet\n\t"z",\n]\n', id="empty, comment"
        ),
        pytest.param('w = [\n  "a", # aa\n]\n', ADD, 'w = [\n  "a", # aa\n  "z",\n]\n', id="lines"),
        pytest.param(
            'w = [\n  "a", # aa\n  "b" # bb, last\n]\n',
            ADD,
            'w = [\n  "a", # aa\n  "b", # bb, last\n  "z"\n]\n',
            id="no trailing comma: one is put before the comment",
        ),
        pytest.param(
            'w = [\n    "a"   # aa\n  , "b"   # bb\n]\n',
            ADD,
            'w = [\n    "a"   # aa\n  , "b"   # bb\n  , "z"\n]\n',
            id="comma first: not inside the comment",
        ),
        pytest.param(
            'w = [\n    "a"   # aa\n  , "b"   # bb\n]\n',
            edit("remove", "w", "a"),
            'w = [\n    "b"   # bb\n]\n',
            id="comma first: first item",
        ),
        pytest.param(
            'w = [\n    "a"\n  , "b" # bb\n  , "c"\n]\n',
            edit("remove", "w", "b"),
            'w = [\n    "a"\n  , "c"\n]\n',
            id="comma first: middle item",
        ),
        pytest.param(
            'w = [ "a"\n    , "b" ]\n',
            ADD,
            'w = [ "a"\n    , "b"\n    , "z" ]\n',
            id="comma first, bracket behind",
        ),
        pytest.param(
            'w = [\n "a", "b", # both\n]\n', ADD, 'w = [\n "a", "b", # both\n "z",\n]\n', id="several a line"
        ),
        pytest.param(
            'w = [\n "a", "b", # both\n]\n',
            edit("remove", "w", "b"),
            'w = [\n "a", # both\n]\n',
            id="a shared comment stays",
        ),
        pytest.param(
            'w = [\n  # about a\n  "a",\n  "b",\n  # tail\n]\n',
            edit("remove", "w", "b"),
            'w = [\n  # about a\n  "a",\n  # tail\n]\n',
            id="comment lines stay",
        ),
        pytest.param(
            'w = [\n  "a",\n  "b"\n]\n',
            edit("remove", "w", "b"),
            'w = [\n  "a",\n]\n',
            id="the line before keeps its comma",
        ),
        pytest.param('w = ["a",\n     "b"]\n', ADD, 'w = ["a",\n     "b",\n     "z"]\n', id="hanging"),
        pytest.param('w = ["a",\n     "b"]\n', edit("remove", "w", "b"), 'w = ["a"]\n', id="hanging, remove"),
        pytest.param(
            'w = ["a", # aa\n     "b"]\n',
            edit("remove", "w", "b"),
            'w = ["a", # aa\n     ]\n',
            id="hanging: a comment is not swallowed",
        ),
        pytest.param('w = [\r\n  "a"\r\n]\r\n', ADD, 'w = [\r\n  "a",\r\n  "z"\r\n]\r\n', id="CRLF"),
        pytest.param(
            'w = ["a", "b", "a"]', edit("remove", "w", "a"), 'w = ["b", "a"]', id="the first of two"
        ),
        pytest.param(
            'w = [\n  "a", # aa\n  # about b\n  "b", # bb\n]\n',
            edit("set", "w", ["b", "c"]),
            'w = [\n  # about b\n  "b", # bb\n  "c",\n]\n',
            id="a whole array is what goes and what comes",
        ),
        pytest.param(
            'w = [ # all\n  ["a", 1],\n]\n',
            edit("append", "w", ["b", 2]),
            'w = [ # all\n  ["a", 1],\n  ["b", 2],\n]\n',
            id="array of arrays",
        ),
    ],
)
def test_arrays(before: str, one: Edit, after: str) -> None:
    assert apply_edits(before, [one]) == after


DRAIN = edit("set", ["decode", "worker", "10.0.2.21:30001", "drain"], True)
SLO = edit("set", "slo.ttft_p99_ms", 800)


@pytest.mark.parametrize(
    ("before", "one", "after"),
    [
        pytest.param("[a]\nx = 0.3 # why\n", edit("set", "a.x", 0.45), "[a]\nx = 0.45 # why\n", id="scalar"),
        pytest.param("x = 0.30\n", typed_edit("set", "x", " 0.40 "), "x = 0.40\n", id="spelling as typed"),
        pytest.param("x = 0.30\n", edit("set", "x", 0.3), "x = 0.30\n", id="the same value: not touched"),
        pytest.param("x = 'a'\n", edit("set", "x", "b"), "x = 'b'\n", id="quotes are kept"),
        pytest.param("x = 'a'\n", edit("set", "x", "b's"), 'x = "b\'s"\n', id="quotes that cannot be kept"),
        pytest.param('x = """\na\n"""\n', edit("set", "x", "b"), 'x = "b"\n', id="long text"),
        pytest.param(
            "h = { a = 1, b = 2 , c = 3 } # z\n",
            edit("set", "h.b", 9),
            "h = { a = 1, b = 9 , c = 3 } # z\n",
            id="inline",
        ),
        pytest.param("h = { a = 1 }\n", edit("set", "h.b", 2), "h = { a = 1, b = 2 }\n", id="inline, new"),
        pytest.param("h = {}\n", edit("set", "h.b.c", 2), "h = { b.c = 2 }\n", id="inline, empty"),
        pytest.param(
            "h = { a = 1, b = 2, c = 3 }", edit("unset", "h.b"), "h = { a = 1, c = 3 }", id="inline, unset"
        ),
        pytest.param("h = { a = 1, b = 2 }", edit("unset", "h.b"), "h = { a = 1 }", id="inline, unset last"),
        pytest.param(
            "p.a = 1\nd.a = 2\np.b = 3 # last\n",
            edit("set", "p.c", 4),
            "p.a = 1\nd.a = 2\np.b = 3 # last\np.c = 4\n",
            id="dotted: behind the last of the table",
        ),
        pytest.param(
            "p.a = 1\n", SLO, "p.a = 1\nslo.ttft_p99_ms = 800\n", id="dotted: a new table is dotted"
        ),
        pytest.param(
            "d.policy = 'x'\nh.a = 1\n",
            DRAIN,
            "d.policy = 'x'\nh.a = 1\ndecode.worker.\"10.0.2.21:30001\".drain = true\n",
            id="dotted: a name with dots",
        ),
        pytest.param(
            "'a b'.c = 1\n", edit("set", ["a b", "d"], 2), "'a b'.c = 1\n'a b'.d = 2\n", id="spelling"
        ),
        pytest.param(
            "[a]\n  x = 1\n\n[b]\ny = 1\n",
            edit("set", "a.z", 2),
            "[a]\n  x = 1\n  z = 2\n\n[b]\ny = 1\n",
            id="new key: behind the last of its table, indented alike",
        ),
        pytest.param("[a]\n[b]\n", edit("set", "a.z", 2), "[a]\nz = 2\n[b]\n", id="new key: empty table"),
        pytest.param(
            "[decode]\nx = 1\n\n# health\n[h]\ny = 1\n",
            DRAIN,
            '[decode]\nx = 1\n\n[decode.worker."10.0.2.21:30001"]\ndrain = true\n\n# health\n[h]\ny = 1\n',
            id="new table: behind its family",
        ),
        pytest.param(
            "[a]\nx = 1\n[b]\ny = 1\n", SLO, "[a]\nx = 1\n[b]\ny = 1\n[slo]\nttft_p99_ms = 800\n", id="tight"
        ),
        pytest.param(
            "[a]\nx = 1", SLO, "[a]\nx = 1\n\n[slo]\nttft_p99_ms = 800", id="no line end at the end"
        ),
        pytest.param(
            "[a]\nx = 1\n# end\n", SLO, "[a]\nx = 1\n# end\n\n[slo]\nttft_p99_ms = 800\n", id="last comment"
        ),
        pytest.param(
            "[a.b]\nx = 1\n",
            edit("set", "a.y", 2),
            "[a]\ny = 2\n\n[a.b]\nx = 1\n",
            id="a table that is only implied",
        ),
        pytest.param(
            "# top\n[a]\nx = 1\n", edit("set", "k", 1), "k = 1\n\n# top\n[a]\nx = 1\n", id="root key"
        ),
        pytest.param("", SLO, "[slo]\nttft_p99_ms = 800\n", id="empty file"),
        pytest.param(
            "[a]\nx = 1\n", edit("append", "a.w", "n"), '[a]\nx = 1\nw = ["n"]\n', id="append to nothing"
        ),
        pytest.param("[a]\nx = 1 # c\ny = 2\n", edit("unset", "a.x"), "[a]\ny = 2\n", id="unset"),
        pytest.param(
            "[a]\nx = 1\n\n[a.w.q]\nd = true\n\n[b]\ny = 1\n",
            edit("unset", ["a", "w", "q"]),
            "[a]\nx = 1\n\n[b]\ny = 1\n",
            id="unset a table: no double blank line stays",
        ),
        pytest.param(
            "[a]\nx = 1\ny = 2\n",
            edit("set", "a", {"y": 3, "z": {"q": 1}}),
            "[a]\ny = 3\n\n[a.z]\nq = 1\n",
            id="table",
        ),
    ],
)
def test_tables(before: str, one: Edit, after: str) -> None:
    assert apply_edits(before, [one]) == after


@pytest.mark.parametrize(
    ("before", "one", "mention"),
    [
        ("x = 1\n", edit("set", "x.y", 1), "x is not a table"),
        ("[x]\ny = 1\n", edit("set", "x", 1), "is a table"),
        ("x = 1\n", edit("append", "x", 1), "not an array"),
        ("x = 1\n", edit("remove", "x", 1), "not an array"),
        ('x = ["a"]\n', edit("remove", "x", "b"), "not there"),
        ("x = 1\n", edit("unset", "y"), "not in the file"),
        ("x = 1\n", edit("unset", "y.z"), "not in the file"),
        ("x = 1\n", edit("set", "x", None), "no null"),
        ("x = 1\nx = 2\n", edit("set", "x", 3), "not valid TOML"),
        ("[[x]]\ny = 1\n", edit("set", "x.y", 2), "not a table"),
        ("[[x]]\ny = 1\n", edit("append", "x", {"y": 2}), "array of tables"),
        ("h = { a.b = 1, a.c = 2 }\n", edit("unset", "h.a"), "by hand"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(before: str, one: Edit, mention: str) -> None:
    with pytest.raises(CannotEdit, match=mention):
        apply_edits(before, [one])


@pytest.mark.parametrize("toml", ["yes", "1\ny = 2", "", "[", '"a'])
def test_typed_text_must_be_one_toml_value(toml: str) -> None:
    with pytest.raises(CannotEdit):
        typed_edit("set", "x", toml)


@pytest.mark.parametrize("key", ["", "a..b", []])
def test_names_must_be_names(key: str | list[str]) -> None:
    with pytest.raises(CannotEdit):
        edit("set", key, 1)


def test_edits_in_words() -> None:
    assert DRAIN.text == 'set decode.worker."10.0.2.21:30001".drain = true'
    assert typed_edit("append", "w", "'a'").text == "add 'a' to w"
    assert edit("unset", "w").text == "take w out"
    assert edit("set", "server.api_key", "hush").text == "set server.api_key = ••••••"
