"""``pdtop router``: the router that config.toml names, run here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pdtop.cli.common import fail


class RouterEngine(StrEnum):
    """Routers that pdtop can run."""

    EMBEDDED = "embedded"
    SMG = "smg"
    SGLANG_ROUTER = "sglang-router"


_HELP = """
Run the router that config.toml describes, and keep it as the file says.

\\[server] engine says which. To move to another, change that line: between smg and sglang-router while it
runs, from or to embedded by starting pdtop router again.

[bold]embedded[/bold] (the default): pdtop's own, in this process. Every key but the address counts from the
next request, weights and \\[topology] too. For demos, tests and small clusters: it has one core.

[bold]smg[/bold]: the Rust router, for large clusters: pip install 'pdtop\\[smg]'. Workers, drains and health
settings count at once, policies and thresholds after a restart; it has no weights.

[bold]sglang-router[/bold] 0.3: pip install 'pdtop\\[sglang-router]'. Workers and drains count at once, all
else after a restart; it has no weights.

If another interpreter has the engine: \\[server] engine_python or $PDTOP_ROUTERS_PYTHON. What an engine does
with each key of a file: pdtop config check FILE --engine smg.

The file is followed, and a bad one changes nothing. For what needs a restart of smg or sglang-router, a new
process gets the new connections while the old one ends its streams: nobody is refused. After a crash it is
started again.

The first line on stdout is JSON and says where it listens. What smg or sglang-router does, what is pending
and what it does not honour: GET /supervisor at \\[server] status_port on 127.0.0.1 (default: port + 1). The
embedded router tells its settings at GET /config.

SIGTERM and Ctrl+C let running requests end, for at most 180 s (for systemd: TimeoutStopSec); told once
more, it ends at once.
"""
#: Paragraphs as one line each: the screen breaks them.
HELP = "\n\n".join(" ".join(part.split()) for part in _HELP.split("\n\n"))
CODES = """
[bold]Examples[/bold]

  pdtop router /etc/pdtop/config.toml

  pdtop router config.toml -- --max-concurrent-requests 512      a flag that no key stands for

Exit codes: 0 ended as it was told, 2 it cannot run as the file stands.
"""


def router(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG [-- FLAG...]",
            help="Default: as for pdtop. Flags are for smg and sglang-router.",
            show_default=False,
        ),
    ] = None,
) -> None:
    path, further = _split(words or [])
    from pdtop.supervisor.__main__ import run

    raise typer.Exit(run(path or _default(), further))


def register(app: typer.Typer) -> None:
    """Make the verb known to the command."""
    app.command("router", help=HELP, epilog=CODES)(router)


def _split(words: Sequence[str]) -> tuple[Path | None, Sequence[str]]:
    """The file, if one is named, and the engine's flags."""
    path, further = (None, words) if not words or words[0].startswith("-") else (Path(words[0]), words[1:])
    if further and not further[0].startswith("-"):
        fail(f"{further[0]} is no flag; usage: pdtop router [CONFIG] [-- FLAG...]")
    return path, further


def _default() -> Path:
    from pdtop.cluster.launch import default_config

    found = default_config(os.environ)
    if found is None:
        fail(
            "which router? No config.toml was found\n"
            "  pdtop router FILE   names it, as does $PDTOP_CONFIG\n"
            "  pdtop config init   writes one"
        )
    return found
