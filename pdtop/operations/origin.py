"""Who operates, from where, in which process; and whether a process of the log still lives."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Origin:
    """``ssh_client`` is the address that the session came from, "" on the machine itself."""

    user: str
    host: str
    ssh_client: str
    pid: int
    process: str


def origin(environ: Mapping[str, str]) -> Origin:
    """Of this process."""
    ssh = (environ.get("SSH_CONNECTION") or environ.get("SSH_CLIENT") or "").split()
    pid = os.getpid()
    return Origin(_user(environ), socket.gethostname(), ssh[0] if ssh else "", pid, process_mark(pid))


def _user(environ: Mapping[str, str]) -> str:
    """By the user id, not by a variable that anybody may set; behind sudo the person, too."""
    import pwd

    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = f"uid {os.geteuid()}"
    person = environ.get("SUDO_USER", "")
    return f"{name} (sudo by {person})" if person and person != name else name


def process_mark(pid: int) -> str:
    """Boot and start time of a process, which tell it from a later one with its pid; "" = no such process.

    ``?`` where the system does not say (no ``/proc``).
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass  # it lives and is somebody else's
    try:
        status = (_PROC / str(pid) / "stat").read_bytes()
        boot = (_PROC / "sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "?"
    fields = status[status.rindex(b")") + 1 :].split()  # behind the name, which may hold anything
    return "" if fields[0] in (b"Z", b"X") else f"{boot}:{int(fields[19])}"


def lives(pid: int, process: str) -> bool:
    """Whether a process of this host is still the one that it was."""
    now = process_mark(pid) if pid > 0 else ""
    return now != "" and (now == process or "?" in (now, process))
