"""The verbs that change a cluster, and the log of what was changed: parse, call, print.

Exit codes: 0 done or drained, 1 failed, 2 usage or config, 3 a deadline passed, 4 refused or answered no,
5 accepted but not applied, 6 partly done, 128+n ended by signal n.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdtop.cli.common import cluster_of, fail, reader, seconds
from pdtop.cli.operating import Common, operating, say

if TYPE_CHECKING:
    from pdtop.operations.model import Request
    from pdtop.operations.state import StateFolder

PANEL = "Change a cluster"
CODES = """
Exit codes: 0 done (a drain that is waited for: drained at every router), 1 failed, 2 usage or config,
3 deadline passed, 4 refused or answered no, 5 accepted but not applied, 6 partly done.
"""


class PoolRole(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


WorkersArgument = Annotated[
    list[str],
    typer.Argument(metavar="WORKER...", help="Name, address, or its end if only one has it: 2.22:30001."),
]
WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Name, address, or its unique end.")]
KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help='As in config.toml: prefill.policy, decode.worker."H:P".weight.')
]
ConfigOption = Annotated[
    str | None,
    typer.Option("--config", "-c", metavar="FILE", help="The cluster's config.toml; default as for pdtop."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask (needed where nobody can answer).")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan and the diff; send and write nothing.")
]
TypeOption = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="WORD", help="What a guard wants typed: as a rule the worker's name."),
]
WriteOption = Annotated[
    bool | None,
    typer.Option(
        "--write/--read-only",
        help="Go over \\[console] read_only = true, or refuse every change. Default: a verb may change.",
        show_default=False,
    ),
]
OverruleOption = Annotated[
    bool, typer.Option("--overrule", help="If somebody changes the same key meanwhile, mine counts.")
]


#: The fields of :class:`Common` as options, each with its default.
_OPTIONS: dict[str, tuple[object, object]] = {
    "config": (ConfigOption, None),
    "yes": (YesOption, False),
    "dry_run": (DryRunOption, False),
    "type": (TypeOption, None),
    "write": (WriteOption, None),
    "overrule": (OverruleOption, False),
}
_EDITING = frozenset({"type", "overrule"})  # of verbs that edit the file


def changes(*, edits: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options that all of them have; it takes them as one, its ``common``."""
    names = [name for name in _OPTIONS if edits or name not in _EDITING]

    def with_options(verb: Callable[..., None]) -> Callable[..., None]:
        @wraps(verb)
        def command(**given: Any) -> None:
            common = Common(**{name: given.pop(name) for name in names})
            verb(common, **given)

        own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in _OPTIONS.items()
            if name in names
        ]
        parameters = [*(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own), *shared]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return with_options


@changes()
def drain(
    common: Common,
    workers: WorkersArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Until drained at every router.")] = False,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Wait no longer than 30m, 90s ...; default: as in config.toml."),
    ] = None,
) -> None:
    """Send a worker no new work; with --wait until what it has is finished.

    The drain is written to config.toml and stays in force until pdtop undrain, also if this is ended with
    Ctrl+C. A worker that is drained already is waited for all the same. Nothing is ever aborted.

    [bold]Examples[/bold]

      pdtop drain 10.0.2.22:30001 --dry-run      what would happen

      pdtop drain 2.22:30001 --wait --timeout 30m

      pdtop drain D2 --wait --yes && systemctl stop sglang      stops it only when it is empty
    """
    limit = seconds(timeout, "--timeout") if timeout is not None else None
    from pdtop.operations.model import Drain

    _change_workers(
        common,
        workers,
        lambda found, limit_s: Drain(tuple(found), limit_s),
        wait=wait,
        timeout_s=limit,
    )


@changes()
def undrain(
    common: Common,
    workers: WorkersArgument,
) -> None:
    """Bring drained workers back as they were: bootstrap port, labels, weight.

    [bold]Example[/bold]

      pdtop undrain 10.0.2.22:30001
    """

    from pdtop.operations.model import Undrain

    _change_workers(common, workers, lambda found, _: Undrain(tuple(found)))


@changes()
def weight(
    common: Common,
    worker: WorkerArgument,
    value: Annotated[float, typer.Argument(metavar="WEIGHT", help="1 is usual, 0.5 half as much, 0 none.")],
) -> None:
    """Set how much of its pool's work a worker gets. The plan says whether this router knows weights.

    [bold]Example[/bold]

      pdtop weight 10.0.1.11:30001 0.5
    """

    from pdtop.operations.model import SetWeight

    _change_workers(common, [worker], lambda found, _: SetWeight(found[0], value))


@changes()
def set_key(
    common: Common,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="As in TOML; a word needs no quotes.")],
) -> None:
    """Set one key of config.toml and bring the routers to it; the plan says what each does with it.

    [bold]Examples[/bold]

      pdtop set prefill.cache_aware_threshold 0.4

      pdtop set decode.policy power_of_two --dry-run

      pdtop set 'prefill.worker."10.0.1.11:30001".rack' r7
    """
    _set(key, value, common)


@changes()
def unset_key(
    common: Common,
    key: KeyArgument,
) -> None:
    """Take one key out of config.toml, so that its default counts.

    [bold]Example[/bold]

      pdtop unset prefill.cache_aware_threshold
    """
    _set(key, None, common)


@changes()
def add(
    common: Common,
    role: Annotated[PoolRole, typer.Argument(metavar="ROLE", help="prefill or decode.")],
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the worker.")],
    bootstrap_port: Annotated[
        int | None, typer.Option("--bootstrap-port", metavar="N", help="Of a prefill worker.")
    ] = None,
) -> None:
    """Add a worker to config.toml and to every router.

    [bold]Example[/bold]

      pdtop add prefill 10.0.1.13:30001 --bootstrap-port 8998
    """

    from pdtop.cluster.model import Role
    from pdtop.operations.model import AddWorker

    _change(common, AddWorker(Role(role.value), address, bootstrap_port))


@changes()
def remove(
    common: Common,
    worker: WorkerArgument,
) -> None:
    """Take a worker out of config.toml and of every router. Drain it first: the plan warns if it has work.

    [bold]Example[/bold]

      pdtop drain 2.22:30001 --wait --yes && pdtop remove 2.22:30001 --yes
    """

    from pdtop.operations.model import RemoveWorker

    _change_workers(common, [worker], lambda found, _: RemoveWorker(found[0]))


@changes(edits=False)
def apply(
    common: Common,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on as a service: keep it so, a line an event, until SIGTERM.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Also take out workers that no config.toml ever named.")
    ] = False,
) -> None:
    """Bring the routers to what config.toml says.

    [bold]Examples[/bold]

      pdtop apply --dry-run          what differs, and what would be done

      pdtop apply --watch --yes      as a service; config.toml is followed while it runs
    """

    from pdtop.operations.model import Apply

    change = _keep_true if watch and not common.dry_run else _change
    change(common, Apply(prune))


@changes(edits=False)
def restart(
    common: Common,
) -> None:
    """Show the plan of what waits for a restart of the router, and run \\[server] restart_command.

    [bold]Example[/bold]

      pdtop restart --dry-run        new command line, what is lost, what clients notice
    """

    from pdtop.operations.model import Restart

    _change(common, Restart())


@changes()
def undo(
    common: Common,
    entry: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Of pdtop log; default: the last change.")
    ] = None,
) -> None:
    """Take the last change back, if nobody has changed the same since.

    [bold]Examples[/bold]

      pdtop undo --dry-run

      pdtop undo 20270102T030405.000006-a1b2c3
    """

    from pdtop.operations.model import Undo

    _change(common, Undo(entry))


def log(
    config: ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    number: Annotated[int, typer.Option("-n", min=1, help="The newest so many.")] = 20,
) -> None:
    """Print who changed what, when, and what came of it; the newest last.

    [bold]Examples[/bold]

      pdtop log -n 50

      pdtop log --json | jq 'select(.outcome != "done")'
    """
    from pdtop.cli.printed import log_lines, log_records
    from pdtop.operations.audit import AuditLog

    entries = AuditLog(_state_folder(config)).entries(number)[::-1]
    if not entries:
        say("pdtop: nothing was changed from here yet")
    with reader():
        for line in log_records(entries) if json else log_lines(entries):
            typer.echo(line)


def _state_folder(config: str | None) -> StateFolder:
    """Of the cluster's file, however broken that is just now."""
    from pdtop.cluster.launch import cluster_name, default_config, names_file
    from pdtop.operations.state import StateFolder, folder_of, state_root

    file = Path(config) if config is not None and names_file(config) else None
    path = default_config(os.environ) if config is None else file
    if path is not None and path.is_file():
        return StateFolder(state_root(os.environ), cluster_name(path), path)
    found = cluster_of(config)
    return folder_of(found.targets, found.path)


@changes()
def config_set(
    common: Common,
    words: Annotated[
        list[str], typer.Argument(metavar="[FILE] KEY VALUE", help="The file's name may come first.")
    ],
) -> None:
    """The same as pdtop set: the file is edited, and routers that can be reached are brought to it.

    [bold]Example[/bold]

      pdtop config set prod.toml slo.ttft_p99_ms 800
    """
    *file, key, value = _words(words, 2, "pdtop config set [FILE] KEY VALUE")
    _set(key, value, _of_file(common, file))


@changes()
def config_unset(
    common: Common,
    words: Annotated[list[str], typer.Argument(metavar="[FILE] KEY", help="The file's name may come first.")],
) -> None:
    """The same as pdtop unset."""
    *file, key = _words(words, 1, "pdtop config unset [FILE] KEY")
    _set(key, None, _of_file(common, file))


VERBS: dict[str, Callable[..., Any]] = {
    "drain": drain,
    "undrain": undrain,
    "weight": weight,
    "set": set_key,
    "unset": unset_key,
    "add": add,
    "remove": remove,
    "apply": apply,
    "restart": restart,
    "undo": undo,
    "log": log,
}


def register(app: typer.Typer, config_app: typer.Typer) -> None:
    """Make the verbs known to the command."""
    for name, verb in VERBS.items():
        app.command(name, rich_help_panel=PANEL, epilog=CODES if name != "log" else None)(verb)
    config_app.command("set")(config_set)
    config_app.command("unset")(config_unset)


# What they have in common.


def _words(words: Sequence[str], least: int, usage: str) -> Sequence[str]:
    if not least <= len(words) <= least + 1:
        fail(f"usage: {usage}")
    return words


def _of_file(common: Common, named: Sequence[str]) -> Common:
    """With the file that was named before the key, if one was."""
    if named and common.config is not None:
        fail("the file is named twice")
    if named and not named[0].endswith(".toml") and not Path(named[0]).is_file():
        fail(f"{named[0]} is no file; a key with a dot in its name is quoted as in TOML")
    return replace(common, config=named[0]) if named else common


def _set(key: str, value: str | None, common: Common) -> None:
    from pdtop.config.keys import split_key

    try:
        path = split_key(key)
    except ValueError as error:
        fail(f"{error}; an address in it is quoted, as in 'decode.worker.\"10.0.2.22:30001\".weight'")

    from pdtop.operations.model import SetValue, UnsetValue

    _change(common, UnsetValue(path) if value is None else SetValue(path, value))


def _change_workers(
    common: Common,
    names: Sequence[str],
    request_of: Callable[[Sequence[str], float], Request],
    *,
    wait: bool = False,
    timeout_s: float | None = None,
) -> None:
    """The same for what is about workers, whose names are looked up in what is watched."""
    with operating(common) as here:
        from pdtop.cli.printed import guard_words
        from pdtop.operations.resolve import find_workers

        meant = find_workers(names, here.snapshot)
        if meant.guards:
            fail("\n       ".join(guard_words(guard) for guard in meant.guards))
        if timeout_s is None:
            config = here.watched.config
            timeout_s = config.console.drain_timeout_secs if config is not None else 1800.0
        request = request_of([worker.key for worker in meant.workers], timeout_s)
        raise typer.Exit(here.verb(common, timeout_s if wait else None).run(request))


def _change(common: Common, request: Request) -> None:
    with operating(common) as here:
        raise typer.Exit(here.verb(common).run(request))


def _keep_true(common: Common, request: Request) -> None:
    with operating(common, source="apply --watch", keep_true=True) as here:
        from pdtop.cli.headless import keep_true
        from pdtop.cli.verbs import Code

        verb = here.verb(common)
        plan = verb.plan(request)
        answer = verb.confirmed(plan)
        if isinstance(answer, Code):
            raise typer.Exit(answer)
        raise typer.Exit(keep_true(here.operator, plan, here.monitor.subscribe, say))
