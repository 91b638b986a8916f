"""What one engine does with every key of a config.toml, for ``config check --engine``; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pdtop.config.changes import flat
from pdtop.config.keys import join_key
from pdtop.config.masking import Masker
from pdtop.config.schema import Config
from pdtop.routers.flags import PROGRAMS, KeyEffect, Kind, effect, refuses_to_start, translations
from pdtop.supervisor.engines import ENGINES
from pdtop.supervisor.launching import refusal

#: Kinds in the order in which they are shown, and what they are called.
_KINDS: Mapping[Kind, str] = {
    "live": "live",
    "restart": "restart",
    "none": "no effect",
    "pdtop": "pdtop",
    "unknown": "unknown",
}
_ADDRESS = KeyEffect("live", "pdtop router moves there; started by other means: after a restart")


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """``rows``: keys of the file, each with what it does. ``alone``: why it would not start without pdtop."""

    engine: str
    rows: tuple[tuple[str, KeyEffect], ...]
    otherwise: tuple[str, ...]
    refused: str | None
    alone: str | None

    @property
    def text(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f'with engine = "{self.engine}":'
        width = max((len(name) for name, _ in self.rows), default=0)
        for kind, called in _KINDS.items():
            for name, found in self.rows:
                if found.kind == kind:
                    words = found.words.removeprefix("no effect here: ").removeprefix("no effect: ")
                    yield f"  {called:<9}  {name:<{width}}  {words}"
        if self.otherwise:
            yield f"{self.engine} is told otherwise:"
            yield from (f"  {words}" for words in self.otherwise)
        if any(found.kind == "restart" for _, found in self.rows):
            yield (
                "restart: pdtop router does it by itself and refuses nobody; pdtop restart where other "
                "means start the router"
                if self.engine in PROGRAMS
                else "restart: pdtop router is to be started again"
            )
        if self.refused is not None:
            yield f"error: {self.refused}"
        elif self.alone is not None:
            yield f"{self.engine} runs this file under pdtop router; by itself it would not: {self.alone}"
        else:
            yield f"{'pdtop router' if self.engine == 'embedded' else self.engine} runs this file"


def check(
    config: Config, document: Mapping[str, object], engine: str, environ: Mapping[str, str]
) -> EngineCheck:
    """``document``: the file as it was parsed, so that only its own keys are spoken of."""
    own = ENGINES.get(engine)
    alone = refuses_to_start(config, engine)
    refused = alone if own is None else refusal(config, own, environ)
    mask = Masker([document])
    rows: dict[str, KeyEffect] = {}
    for path, value in flat(document).items():
        if not isinstance(value, Mapping):  # an empty table says nothing
            found = (
                _ADDRESS if own and path in (("server", "host"), ("server", "port")) else effect(engine, path)
            )
            rows.setdefault(mask(_name(path, found)), found)
    otherwise = (
        words
        for words in translations(config, engine)
        if words != refused and not words.startswith("left out because")  # pdtop router does that live
    )
    return EngineCheck(engine, tuple(rows.items()), tuple(otherwise), refused, alone)


def _name(path: Sequence[str], found: KeyEffect) -> str:
    """Alike keys have one name: those of all workers, and of tables that pdtop alone reads."""
    match path:
        case ("prefill" | "decode", "worker", _, key):
            return join_key((path[0], "worker", "*", key)).replace('"*"', "*")
        case (table, *_) if found.kind == "pdtop" and table != "server":
            return join_key((table,))
        case _:
            return join_key(path)
