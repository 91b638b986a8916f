"""The restart of a router: what it would be, in words, and running the command that config.toml gives for it.

The command is a list of words and no shell sees it. One that does not end in time is left running: stopped
half-way it might leave the router down.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from pdtop.cluster.words import clean
from pdtop.config.changes import Change
from pdtop.config.masking import Masker
from pdtop.config.schema import Config
from pdtop.operations.model import Outcome, RestartPlan
from pdtop.routers.detect import DIALECTS, UNKNOWN
from pdtop.routers.flags import (
    RESTART_LOSES,
    command_line,
    masked,
    refuses_to_start,
    restart_gap,
    translations,
)

#: A router lets its streams end before it stops: 180 s with the defaults of sglang-router and smg.
TIMEOUT_S = 300.0
_LOOK_EVERY_S = 0.1
_TAIL_BYTES = 16 * 1024
_TAIL_LINES = 20
_LINE = 300


def restart_plan(
    changes: Sequence[Change],
    config: Config,
    engines: Mapping[str, str],
    *,
    base: tuple[str, ...] = (),
) -> RestartPlan | None:
    """What a restart would bring and cost; None if no change asks for one.

    ``engines``: the routers by name. ``base``: the router's present command line, () if it is not known.
    """
    if not changes:
        return None
    kinds = list(dict.fromkeys(engines.values()))
    engine = next(
        (kind for kind in kinds if command_line(config, kind, base=base)), kinds[0] if kinds else ""
    )
    command = masked(command_line(config, engine, base=base))
    restart_command = config.server.restart_command
    reads_file = DIALECTS.get(engine, UNKNOWN).powers.reads_file
    return RestartPlan(
        changes=tuple(changes),
        command=command,
        lost=() if reads_file else RESTART_LOSES,
        gap=restart_gap(engine),
        warnings=tuple(_warnings(config, engine, engines, bool(command), bool(restart_command))),
        restart_command=masked(restart_command),
    )


def _warnings(
    config: Config, engine: str, engines: Mapping[str, str], has_flags: bool, can_run: bool
) -> Iterable[str]:
    refusal = refuses_to_start(config, engine)
    if refusal is not None:
        yield refusal
    yield from translations(config, engine)
    if has_flags and can_run:
        yield "put the new command line where restart_command takes it from (e.g. the systemd unit) first"
    if not can_run:
        yield "no restart_command in [server]: pdtop cannot do it, restart the router by hand"
    if len(engines) > 1:
        yield f"{len(engines)} routers: restart one at a time, so that the others serve meanwhile"


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of the command. ``code`` None: it could not be started, or has not ended."""

    outcome: Outcome
    words: str
    code: int | None = None
    seconds: float = 0.0
    output: tuple[str, ...] = ()  # the last lines, harmless and masked


async def run_command(
    command: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    secrets: Iterable[str] = (),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> Ran:
    """Run ``command`` and wait for its end. ``secrets``: texts that must not be shown of its output."""
    mask = Masker([{"key": secret} for secret in secrets])
    name = clean(mask(command[0])) if command else ""
    if not command:
        return Ran(Outcome.FAILED, "no restart_command in [server]")
    began = clock()
    with tempfile.TemporaryFile() as output:  # no pipe: what it leaves running may go on writing
        try:
            process = _start(command, output)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "bad word in it"
            return Ran(Outcome.FAILED, f"{name} could not be started: {why}")
        try:
            while process.poll() is None and clock() - began < timeout_s:
                await sleep(_LOOK_EVERY_S)
        finally:
            if process.poll() is None:  # somebody must take note of its end
                threading.Thread(target=process.wait, name="pdtop-restart", daemon=True).start()
        lines, seconds, code = _tail(output, mask), clock() - began, process.poll()
    if code is None:
        words = f"{name} has not ended after {timeout_s:g} s; it is left running (pid {process.pid})"
        return Ran(Outcome.TIMED_OUT, words, None, seconds, lines)
    if code == 0:
        return Ran(Outcome.DONE, f"{name} ended well", code, seconds, lines)
    how = f"with code {code}" if code > 0 else f"by signal {-code}"
    return Ran(Outcome.FAILED, f"{name} ended {how}", code, seconds, lines)


def _start(command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl+C in the console is not meant for it."""
    return subprocess.Popen(  # noqa: S603 - the operator's own command, as words
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _tail(output: IO[bytes], mask: Masker) -> tuple[str, ...]:
    size = output.seek(0, 2)
    output.seek(max(0, size - _TAIL_BYTES))
    text = mask(output.read().decode("utf-8", "replace"))
    lines = [clean(line.rstrip())[:_LINE] for line in text.splitlines()]
    if size > _TAIL_BYTES:
        lines = lines[1:]  # its beginning is cut off, perhaps in the middle of a key
    return tuple(line for line in lines if line)[-_TAIL_LINES:]
