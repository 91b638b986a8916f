"""A server process's life: what it may open, and that it ends at a signal or, as a child, with its parent."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from contextlib import suppress

#: Set in a child's environment: stop when standard input ends, as nobody writes to it.
FOLLOW_PARENT = "PDTOP_FOLLOW_PARENT"


def follows_parent() -> bool:
    """A child ends with its parent, and at once."""
    return bool(os.environ.get(FOLLOW_PARENT))


def allow_many_connections() -> None:
    """A request needs up to three descriptors; many systems begin with 1024 and allow more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def run_until_told() -> None:
    """Return at SIGTERM, SIGINT, SIGHUP or, in a child, when the parent has gone."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, told.set)
    child = follows_parent()
    if child:
        loop.add_reader(sys.stdin.fileno(), told.set)
    await told.wait()
    if child:
        loop.remove_reader(sys.stdin.fileno())
