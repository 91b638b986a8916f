"""Every verb of the command line, thin: parse, call, print. A verb loads what it needs when it runs.

stdout is data, stderr is narration. Exit codes: 0 fine, 1 findings at or above ``--fail-on``, 2 usage or
configuration, 3 nothing could be reached, 128+n ended by signal n.
"""

from __future__ import annotations

import errno
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdtop import __version__
from pdtop.cli.changes import VERBS, register
from pdtop.cli.common import Exit, fail, reader, seconds
from pdtop.cli.common import watched as find_watched
from pdtop.cli.operating import console_operator
from pdtop.cli.routing import RouterEngine
from pdtop.cli.routing import register as register_router

if TYPE_CHECKING:
    from pdtop.cluster.launch import Watched
    from pdtop.cluster.model import Snapshot
    from pdtop.simulator.scenarios import Scenario


class FailOn(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


EXAMPLES = """
[bold]Examples[/bold]

  pdtop demo                     try it: a simulated cluster

  pdtop config.toml              the cluster that the file describes

  pdtop http://router:30000      whatever stands behind a router

  pdtop --prefill P1 P2 --decode D1 D2      without a router

  pdtop snapshot --json config.toml         numbers for scripts

  pdtop drain 10.0.2.22:30001 --wait        no new work, until it is empty

  pdtop set prefill.cache_aware_threshold 0.4 --dry-run      what that would do

  pdtop router config.toml       the router itself: pdtop's own, smg or sglang-router

Without a verb the console opens: its options are in pdtop console --help. It is read-only unless --write or
\\[console] read_only = false says otherwise; a verb that changes something shows its plan and asks.

Exit codes: 0 fine, 1 findings (--fail-on), 2 usage or config, 3 nothing reachable; those of the verbs that
change a cluster are in their --help.
"""

app = typer.Typer(
    name="pdtop",
    help="Console for SGLang clusters that serve with prefill and decode on separate workers.",
    epilog=EXAMPLES,
    no_args_is_help=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Check, show, begin or change a config.toml.", no_args_is_help=True)
app.add_typer(config_app, name="config")

TargetArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="TARGET", help="config.toml, or the address of a router (or several)."),
]
PrefillOption = Annotated[
    list[str] | None,
    typer.Option("--prefill", metavar="URL...", help="Prefill workers; give TARGET before this option."),
]
DecodeOption = Annotated[list[str] | None, typer.Option("--decode", metavar="URL...", help="Decode workers.")]
MetricsUrlOption = Annotated[
    str | None,
    typer.Option("--metrics-url", metavar="URL", help="The router's metrics page, if it is not found."),
]
CaFileOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="PEM file of the CA that signed router and workers.",
    ),
]
ArmOption = Annotated[
    bool | None,
    typer.Option(
        "--write/--read-only",
        help="Whether the cluster can be changed from here; default: \\[console] read_only, else not.",
        show_default=False,
    ),
]


@app.command("console")
def console(
    targets: TargetArgument = None,
    prefill: PrefillOption = None,
    decode: DecodeOption = None,
    metrics_url: MetricsUrlOption = None,
    ca_file: CaFileOption = None,
    interval: Annotated[
        float | None, typer.Option("--interval", min=0.2, help="Seconds between two reads of /metrics.")
    ] = None,
    window: Annotated[
        float | None, typer.Option("--window", min=1.0, help="Seconds for rates, shares and percentiles.")
    ] = None,
    theme: Annotated[str | None, typer.Option("--theme", help="Name of a theme.")] = None,
    no_mouse: Annotated[bool, typer.Option("--no-mouse", help="Leave the mouse to the terminal.")] = False,
    write: ArmOption = None,
) -> None:
    """Open the console (the default when no verb is given)."""
    watched = find_watched(targets, prefill, decode, metrics_url, ca_file)
    raise typer.Exit(
        _open_console(watched, interval=interval, window=window, theme=theme, mouse=not no_mouse, write=write)
    )


@app.command()
def snapshot(
    targets: TargetArgument = None,
    prefill: PrefillOption = None,
    decode: DecodeOption = None,
    metrics_url: MetricsUrlOption = None,
    ca_file: CaFileOption = None,
    window: Annotated[
        str, typer.Option("--window", help="Time between the two reads, such as 10s or 1m; 0 reads once.")
    ] = "10s",
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="One row a worker.")] = False,
    fail_on: Annotated[
        FailOn | None, typer.Option("--fail-on", help="Exit with 1 if there is a finding this bad or worse.")
    ] = None,
) -> None:
    """Read everything twice, a window apart, and print it (a table, --json or --csv)."""
    if json and csv:
        fail("--json and --csv exclude each other")
    watched = find_watched(targets, prefill, decode, metrics_url, ca_file)
    span = seconds(window, "--window")
    from pdtop.cluster.once import snapshot_once

    taken = snapshot_once(watched, window_s=span, narrate=_narrate)
    with reader():
        if json:
            from pdtop.cluster.export import dumps

            typer.echo(dumps(taken))
        elif csv:
            from pdtop.cluster.export import to_csv

            typer.echo(to_csv(taken), nl=False)
        else:
            _print_table(taken)
    raise typer.Exit(_verdict(taken, fail_on))


@app.command()
def watch(
    targets: TargetArgument = None,
    prefill: PrefillOption = None,
    decode: DecodeOption = None,
    metrics_url: MetricsUrlOption = None,
    ca_file: CaFileOption = None,
    window: Annotated[str, typer.Option("--window", help="Span of rates and percentiles.")] = "30s",
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after this many lines.")] = None,
) -> None:
    """Print one JSON object a line and round until stopped."""
    watched = find_watched(targets, prefill, decode, metrics_url, ca_file)
    from pdtop.cluster.export import dumps
    from pdtop.cluster.once import snapshots

    for printed, taken in enumerate(snapshots(watched, window_s=seconds(window, "--window")), start=1):
        with reader():
            typer.echo(dumps(taken))
        if count is not None and printed >= count:
            break


@app.command()
def info() -> None:
    """Versions, paths, terminal and colours: what to send along with a question."""
    from pdtop.cluster.launch import about
    from pdtop.operations.state import state_root

    for name, value in about(state_root(os.environ)):
        typer.echo(f"{name:<18} {value}")


@app.command()
def demo(
    prefill: Annotated[int, typer.Option("--prefill", min=1, max=64, help="Prefill workers.")] = 3,
    decode: Annotated[int, typer.Option("--decode", min=1, max=64, help="Decode workers.")] = 4,
    rate: Annotated[float | None, typer.Option("--rate", min=0.0, help="Requests per second.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same load.")] = 0,
    scenario: Annotated[
        str,
        typer.Option(
            "--scenario",
            help="steady, burst, hot-prefix, slow-decode, "
            "kv-full, transfer-stall, dead-worker or frozen-worker.",
        ),
    ] = "steady",
    engine: Annotated[
        RouterEngine,
        typer.Option(
            "--engine",
            help="The router in front; smg and sglang-router: pip install 'pdtop\\[smg]' or "
            "'pdtop\\[sglang-router]', or $PDTOP_ROUTERS_PYTHON names an interpreter that has it.",
        ),
    ] = RouterEngine.EMBEDDED,
    headless: Annotated[bool, typer.Option("--headless", help="No console; print one JSON line.")] = False,
    duration: Annotated[float | None, typer.Option("--duration", help="End after this many seconds.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Where config.toml and logs go.")] = None,
    write: ArmOption = None,
) -> None:
    """Start a simulated cluster on this machine and open the console on it."""
    from pdtop.simulator import demo as demo_cluster

    if not headless:
        _need_terminal("pdtop demo --headless")
    code = demo_cluster.run(
        prefill=prefill,
        decode=decode,
        rate=rate,
        seed=seed,
        scenario=_scenario(scenario),
        engine=engine.value,
        headless=headless,
        duration=duration,
        directory=directory,
        open_console=lambda path: _open_console(find_watched([str(path)]), write=write),
    )
    raise typer.Exit(code)


ConfigFile = Annotated[Path, typer.Argument(metavar="[FILE]", help="The file; default: config.toml.")]


@config_app.command("check")
def config_check(
    path: ConfigFile = Path("config.toml"),
    engine: Annotated[
        RouterEngine | None,
        typer.Option("--engine", help="Say as well what this router does with each key; 2 if it refuses."),
    ] = None,
) -> None:
    """Say everything that is wrong with a file, with lines and how to mend it."""
    from pdtop.config import commands

    loaded = commands.check(path)
    typer.echo(commands.report(loaded))
    if loaded.config is None or not loaded.ok:
        raise typer.Exit(Exit.USAGE)
    if engine is not None:
        from pdtop.cli.engine_check import check

        found = check(loaded.config, loaded.document, engine.value, os.environ)
        typer.echo(found.text)
        raise typer.Exit(Exit.OK if found.refused is None else Exit.USAGE)


@config_app.command("show")
def config_show(path: ConfigFile = Path("config.toml")) -> None:
    """Print the effective settings, defaults included, secrets masked."""
    from pdtop.config import commands

    loaded = commands.check(path)
    if loaded.config is None:
        fail(commands.report(loaded))
    typer.echo(commands.show(loaded.config), nl=False)


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of config.toml."""
    import json

    from pdtop.config import commands

    typer.echo(json.dumps(commands.schema(), indent=2))


@config_app.command("init")
def config_init(
    path: ConfigFile = Path("config.toml"),
    stdout: Annotated[bool, typer.Option("--stdout", help="Print it instead of writing it.")] = False,
    router: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="A router: name it and the workers that it lists."),
    ] = None,
) -> None:
    """Write a commented file to start from; an existing one is left alone.

    [bold]Example[/bold]

      pdtop config init --from http://10.0.0.10:30000
    """
    from pdtop.config import commands

    if not stdout and path.exists():
        fail(f"{path} exists already and was left as it is; --stdout prints the text")
    text = commands.init_text() if router is None else _init_text_from(router)
    if stdout:
        typer.echo(text, nl=False)
        return
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
    edit = "edit the workers, then " if router is None else ""
    typer.echo(f"wrote {path}; next: {edit}pdtop {path}", err=True)


def _init_text_from(url: str) -> str:
    from pdtop.cluster.launch import LaunchError, found_at
    from pdtop.config import commands

    try:
        return commands.init_text_from(found_at(url))
    except LaunchError as error:
        fail(str(error), Exit.UNREACHABLE)


def _scenario(name: str) -> Scenario:
    from typing import get_args

    from pdtop.simulator.scenarios import Scenario

    known: dict[str, Scenario] = {scenario: scenario for scenario in get_args(Scenario)}
    if name not in known:
        fail(f"there is no scenario {name!r}; there are: {', '.join(known)}")
    return known[name]


def _narrate(text: str) -> None:
    typer.echo(text, err=True)


def _need_terminal(instead: str) -> None:
    # A closed stdin or stdout is None.
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        fail(f"the console needs a terminal on stdin and stdout; without one use: {instead}")
    if os.environ.get("TERM", "") in ("", "dumb"):
        fail(f"the console needs a terminal that can place text (TERM is dumb or unset); use: {instead}")


def _open_console(
    watched: Watched,
    *,
    interval: float | None = None,
    window: float | None = None,
    theme: str | None = None,
    mouse: bool = True,
    write: bool | None = None,
) -> int:
    _need_terminal("pdtop snapshot")
    from pdtop.cluster.launch import console_settings, start
    from pdtop.operations.state import state_root
    from pdtop.tui.app import run
    from pdtop.tui.options import ConsoleOptions

    settings = console_settings(watched.config, theme=theme, mouse=mouse, state_dir=state_root(os.environ))
    monitor = start(watched, interval_s=interval, window_s=window)
    operator = None
    try:
        operator = console_operator(monitor, watched, write)
        return run(monitor, ConsoleOptions(**settings), operator)
    finally:
        if operator is not None:
            operator.close()
        monitor.stop()


def _print_table(taken: Snapshot) -> None:
    from rich.console import Console

    from pdtop.cluster.table import render

    out = Console(highlight=False, markup=False)
    out.print(render(taken, out.width))


def _verdict(taken: Snapshot, fail_on: FailOn | None) -> Exit:
    from pdtop.cluster.model import Severity
    from pdtop.cluster.once import anything_reached
    from pdtop.insight.findings import at_or_above

    if not anything_reached(taken):
        return Exit.UNREACHABLE
    if fail_on and any(at_or_above(f.severity, Severity(fail_on)) for f in taken.findings):
        return Exit.FINDINGS
    return Exit.OK


register_router(app)
register(app, config_app)

_VERBS = ("console", "snapshot", "watch", "info", "demo", "router", "config", *VERBS)
_GLOBAL_OPTIONS = ("-h", "--help", "--install-completion", "--show-completion")


def arguments(argv: list[str]) -> list[str]:
    """The words as typer wants them: console is the default verb, ``--prefill a b`` repeats the option."""
    given = list(argv)
    if not given or (given[0] not in _VERBS and given[0] not in _GLOBAL_OPTIONS):
        given.insert(0, "console")
    spread: list[str] = []
    option: str | None = None
    fresh = False
    if given[0] in ("demo", "router"):  # there --prefill is a number, or a flag of somebody else
        return given
    for word in given:
        if word in ("--prefill", "--decode"):
            option, fresh = word, True
            spread.append(word)
        elif option and not word.startswith("-"):
            spread += [word] if fresh else [option, word]
            fresh = False
        else:
            option = None
            spread.append(word)
    return spread


def main() -> None:
    """Entry point of the ``pdtop`` command."""
    if sys.argv[1:2] in (["--version"], ["-V"]):
        print(f"pdtop {__version__}")
        return
    try:
        app(args=arguments(sys.argv[1:]), prog_name="pdtop")
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print("pdtop: stdout cannot be written: no space left", file=sys.stderr)
        raise SystemExit(Exit.USAGE) from None
