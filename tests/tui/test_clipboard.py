"""Copying through the terminal."""

from __future__ import annotations

import base64

from pdtop.tui.clipboard import MAX_PAYLOAD, osc52

PAYLOAD = base64.b64encode(b"10.0.2.22:30001").decode()


def test_a_plain_terminal_gets_the_bare_sequence() -> None:
    assert osc52("10.0.2.22:30001", {"TERM": "xterm-256color"}) == f"\x1b]52;c;{PAYLOAD}\x07"


def test_tmux_gets_the_bare_one_and_one_to_hand_through() -> None:
    got = osc52("10.0.2.22:30001", {"TMUX": "/run/tmux-0/default,1,0", "TERM": "tmux-256color"})
    bare = f"\x1b]52;c;{PAYLOAD}\x07"
    assert got == bare + "\x1bPtmux;\x1b" + bare + "\x1b\\"


def test_screen_gets_chunks_it_can_pass() -> None:
    got = osc52("x" * 3000, {"STY": "1.pts", "TERM": "screen"})
    assert got is not None
    chunks = got.split("\x1bP")[1:]
    assert len(chunks) > 1
    assert all(len(c) <= 768 and c.endswith("\x1b\\") for c in chunks)
    assert "".join(c.removesuffix("\x1b\\") for c in chunks).startswith("\x1b]52;c;")


def test_what_terminals_would_drop_is_refused() -> None:
    assert osc52("x" * 56_000, {}) is not None
    assert osc52("x" * MAX_PAYLOAD, {}) is None


def test_any_text_can_be_copied() -> None:
    got = osc52("日本 \ud800", {})
    assert got is not None
    assert base64.b64decode(got[len("\x1b]52;c;") : -1]) == "日本 ?".encode()
