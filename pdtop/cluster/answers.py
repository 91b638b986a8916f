"""Turns an answer that is not what was asked for into a state, words, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from pdtop.cluster.model import State
from pdtop.cluster.readings import Answer


@dataclass(frozen=True, slots=True)
class KeyUse:
    """Which environment variable holds the key for these requests, and whether one was sent.

    ``admin_variable``: where an admin key belongs, for what may want one.
    """

    variable: str = "PDTOP_API_KEY"
    sent: bool = False
    admin_variable: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an answer cannot be used."""

    state: State
    reason: str
    fix: str = ""


_FIXES = {
    State.TIMEOUT: "see whether the process hangs; if it is only slow, raise timeout_secs in [console]",
    State.REFUSED: "see whether the process runs, and whether host and port are right",
    State.TLS: "name the file of the CA that signed the certificate: ca_file in [server], or --ca-file",
    State.REDIRECT: "write the address that it redirects to, if that is the right one",
}


def trouble(answer: Answer, keys: KeyUse) -> Trouble | None:
    """What is wrong with an answer as such; None for 200 with a body that came whole or in part."""
    if answer.failure is not None and answer.failure is not State.PARTIAL:
        return Trouble(answer.failure, answer.detail, _FIXES.get(answer.failure, ""))
    status = answer.status
    if status == 200:
        return None
    if status in (401, 403):
        wants_admin = status == 403 or "control-plane" in answer.headers.get("www-authenticate", "")
        if keys.admin_variable and wants_admin:
            fix = f"it wants the key of an admin: put one into ${keys.admin_variable}"
        elif keys.sent:
            fix = f"the key in ${keys.variable} is not the one it wants: set the right key"
        else:
            fix = f"it wants a key: set the variable {keys.variable}"
        return Trouble(State.AUTH, status_words(status), fix)
    if status is not None and 300 <= status < 400:
        return Trouble(State.REDIRECT, f"{status_words(status)} to nowhere", _FIXES[State.REDIRECT])
    return Trouble(State.HTTP_ERROR, status_words(status), "see the log of the process")


def status_words(status: int | None) -> str:
    """``404 Not Found``; the phrase is the standard's, not the server's."""
    if status is None:
        return "no status"
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


class _ReadPage(Protocol):
    @property
    def lines(self) -> int: ...
    @property
    def bad_lines(self) -> int: ...
    @property
    def duplicates(self) -> int: ...


def line_words(page: _ReadPage) -> str:
    """What of a page could not be read as it stands; "" if nothing."""
    words = []
    if page.bad_lines:
        words.append(f"{page.bad_lines} of {page.lines} lines cannot be read")
    if page.duplicates:
        words.append(f"{page.duplicates} series repeated")
    return ", ".join(words)


def content_type(answer: Answer) -> str:
    """The media type, if it is one: short and harmless."""
    text = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    return text if re.fullmatch(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,60}", text) else ""
