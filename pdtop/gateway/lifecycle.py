"""When a server process ends: at a signal or, as a child, when its parent has gone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

#: Set in a child's environment: stop when standard input ends, as nobody writes to it.
FOLLOW_PARENT = "PDTOP_FOLLOW_PARENT"


def follows_parent() -> bool:
    """A child ends with its parent, and at once."""
    return bool(os.environ.get(FOLLOW_PARENT))


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
