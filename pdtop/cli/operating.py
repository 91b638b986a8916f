"""The cluster of a verb that changes something: watched until all have answered, its gate not armed yet."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdtop.cli.common import cluster_of

if TYPE_CHECKING:
    from pdtop.cli.verbs import Verb
    from pdtop.cluster.launch import Watched
    from pdtop.cluster.model import Snapshot
    from pdtop.cluster.monitor import Monitor
    from pdtop.operations.model import Guard
    from pdtop.operations.operator import Operator


@dataclass(frozen=True, slots=True)
class Common:
    """The options of all verbs that change something."""

    config: str | None
    yes: bool
    dry_run: bool
    write: bool | None
    type: Sequence[str] | None = None
    overrule: bool = False


def console_operator(monitor: Monitor, found: Watched, flag: bool | None) -> Operator:
    """The gate of a console: armed if the flag, the cluster's file or the user's own says so."""
    from pdtop.cluster.launch import user_config
    from pdtop.operations.arming import arming_of
    from pdtop.operations.operator import Operator

    arming = arming_of(flag, found.loaded, user_config())
    return Operator(monitor, path=found.path, arming=arming)


def say(line: str) -> None:
    from pdtop.cluster.words import clean

    print(clean(line), file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Operating:
    """A watched cluster and its gate, which is not armed yet."""

    watched: Watched
    monitor: Monitor
    operator: Operator
    snapshot: Snapshot

    def verb(self, common: Common, wait_s: float | None = None) -> Verb:
        from pdtop.cli.terminal import this_terminal
        from pdtop.cli.verbs import How, Verb

        names = {worker.key: worker.name for worker in self.snapshot.workers}
        how = How(
            yes=common.yes,
            dry_run=common.dry_run,
            typed=tuple(common.type or ()),
            overrule=common.overrule,
            read_only=_read_only(common.write, self.watched),
            wait_s=wait_s,
        )
        return Verb(
            self.operator,
            this_terminal(),
            how,
            name_of=lambda key: names.get(key, key),
            drift=self.snapshot.drift,
        )


def _read_only(flag: bool | None, found: Watched) -> Guard | None:
    """Why nothing may be changed from here; None if a verb may arm the gate."""
    from pdtop.cluster.launch import user_config
    from pdtop.operations.arming import arming_of_verb
    from pdtop.operations.model import Guard

    arming = arming_of_verb(flag, found.loaded, user_config())
    if not arming.read_only:
        return None
    if arming.by == "--read-only":
        return Guard("read_only", "--read-only: nothing is changed", "leave it out")
    return Guard("read_only", f"{arming.by} says [console] read_only = true", "--write goes over it")


@contextmanager
def operating(
    common: Common, *, source: str = "command line", keep_true: bool = False
) -> Iterator[Operating]:
    """The cluster, once everybody has answered or had the time to."""
    found = cluster_of(common.config)
    from pdtop.cluster.launch import first_look, start
    from pdtop.operations.operator import Operator

    monitor = start(found)
    try:
        snapshot = first_look(monitor)
        operator = Operator(monitor, path=found.path, source=source, keep_true=keep_true)
        try:
            for notice in operator.view().notices:
                say(f"pdtop: {notice}")
            yield Operating(found, monitor, operator, snapshot)
        finally:
            operator.close()
    finally:
        monitor.stop()
