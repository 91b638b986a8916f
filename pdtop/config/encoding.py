"""Bytes of a config file to text: UTF-8, with or without a byte order mark; else what it is and where."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

_WIDE = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # before UTF-16: its mark begins with the same two bytes
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True, slots=True)
class Decoded:
    """``text`` has no byte order mark and its own line ends; ``newline`` is the more frequent one."""

    text: str
    bom: bool
    newline: str


class DecodingError(Exception):
    """The bytes are not UTF-8. ``rule`` says what they seem to be, ``line`` where it shows."""

    def __init__(self, rule: str, line: int, fix: str) -> None:
        super().__init__(f"line {line}: {rule}")
        self.rule, self.line, self.fix = rule, line, fix


def decode(raw: bytes) -> Decoded:
    """Text of the file.

    Raises:
        DecodingError: the bytes are not UTF-8.
    """
    for mark, name in _WIDE:
        if raw.startswith(mark):
            raise _wide(name)
    if len(raw) >= 4 and (raw[1] == raw[3] == 0 or raw[0] == raw[2] == 0):
        raise _wide("UTF-16")
    bom = raw.startswith(codecs.BOM_UTF8)
    body = raw[len(codecs.BOM_UTF8) :] if bom else raw
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        byte = body[error.start]
        raise DecodingError(
            f"encoding: not UTF-8 (byte 0x{byte:02X}); it looks like Latin-1 or Windows-1252",
            line,
            "save it as UTF-8, for instance: iconv -f WINDOWS-1252 -t UTF-8",
        ) from None
    crlf = text.count("\r\n")
    return Decoded(text, bom, "\r\n" if crlf * 2 > text.count("\n") else "\n")


def encode(text: str, *, bom: bool) -> bytes:
    """The inverse of :func:`decode`."""
    return (codecs.BOM_UTF8 if bom else b"") + text.encode("utf-8")


def _wide(name: str) -> DecodingError:
    return DecodingError(
        f"encoding: the file is {name}, TOML must be UTF-8", 1, f"save it as UTF-8: iconv -f {name} -t UTF-8"
    )
