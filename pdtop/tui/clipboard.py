"""Copying to the clipboard of the terminal at the other end: OSC 52, also from inside tmux and screen."""

from __future__ import annotations

import base64
from collections.abc import Mapping

#: Longest base64 payload; many terminals drop longer ones silently.
MAX_PAYLOAD = 74_994

#: GNU screen passes device control strings of at most 768 bytes.
_SCREEN_CHUNK = 700


def osc52(text: str, environ: Mapping[str, str]) -> str | None:
    """What to write to the terminal so that it copies ``text``; None if that is too long for terminals.

    tmux takes the bare sequence with ``set-clipboard on`` and hands the wrapped one through with
    ``allow-passthrough on``; both are sent, as neither does harm where it is not understood.
    """
    payload = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    if len(payload) > MAX_PAYLOAD:
        return None
    bare = f"\x1b]52;c;{payload}\x07"
    if environ.get("TMUX"):
        doubled = bare.replace("\x1b", "\x1b\x1b")
        return f"{bare}\x1bPtmux;{doubled}\x1b\\"
    if environ.get("STY") or environ.get("TERM", "").startswith("screen"):
        chunks = [bare[i : i + _SCREEN_CHUNK] for i in range(0, len(bare), _SCREEN_CHUNK)]
        return "".join(f"\x1bP{chunk}\x1b\\" for chunk in chunks)
    return bare
