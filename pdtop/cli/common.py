"""What all verbs of the command line share: exit codes, the one clear message, times, what is watched."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from pdtop.cluster.launch import Watched


class Exit(IntEnum):
    """Of the verbs that look; those that change something end as ``pdtop.cli.verbs.Code`` says."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    UNREACHABLE = 3


def fail(message: str, code: int = Exit.USAGE) -> NoReturn:
    """One clear message on stderr, then out."""
    typer.echo(f"pdtop: {message}", err=True)
    raise typer.Exit(code)


def seconds(text: str, option: str) -> float:
    """``10``, ``10s``, ``1.5m`` or ``1h`` in seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        found = float(number) * unit
    except ValueError:
        fail(f"{option} {text!r} is not a time; write 10s, 1.5m or 0")
    if not 0 <= found <= 86400:
        fail(f"{option} {text!r} is out of range; write 0 to 24h")
    return found


def watched(
    targets: list[str] | None,
    prefill: list[str] | None = None,
    decode: list[str] | None = None,
    metrics_url: str | None = None,
    ca_file: Path | None = None,
) -> Watched:
    """What the words of the command line mean; ends with a message if they mean nothing."""
    from pdtop.cluster.launch import LaunchError, find

    try:
        return find(targets or [], prefill or [], decode or [], metrics_url, ca_file)
    except LaunchError as error:
        fail(str(error))


def cluster_of(config: str | None) -> Watched:
    """The cluster of a verb that changes one or tells of its changes."""
    from pdtop.cluster.launch import LaunchError, NothingNamed, find

    try:
        return find([config] if config is not None else [], [], [])
    except NothingNamed:
        fail(
            "which cluster? No config.toml was found\n"
            "  -c FILE             names it, as does $PDTOP_CONFIG; pdtop demo says where its own is\n"
            "  pdtop config init   writes one: with --from http://router:30000 of what that router lists"
        )
    except LaunchError as error:
        fail(str(error))


@contextmanager
def reader() -> Iterator[None]:
    """Print data within: if its reader goes away (head, less), nothing is left to say, quietly."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(128 + signal.SIGPIPE) from None
