"""What a request changes in config.toml, as edits; and the file as it would read after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pdtop.config.edit import Edit, apply_edits, edit, typed_edit
from pdtop.config.keys import look_up
from pdtop.config.load import Loaded, load_bytes
from pdtop.config.schema import Config
from pdtop.operations.fields import spelled
from pdtop.operations.model import (
    AddWorker,
    Drain,
    RemoveWorker,
    Request,
    SetValue,
    SetWeight,
    Undrain,
    UnsetValue,
)
from pdtop.operations.resolve import Place, places


def edits_of(request: Request, loaded: Loaded) -> tuple[Edit, ...]:
    """The edits; none where the file says so already. A worker that the file does not list has none.

    Raises:
        CannotEdit: what was typed is no TOML.
    """
    config, document = loaded.config, loaded.document
    match request:
        case SetValue(path, spelling):
            one = typed_edit("set", path, spelled(path, spelling))
            return () if _value(document, path) == (True, one.value) else (one,)
        case UnsetValue(path):
            return (edit("unset", path),) if _value(document, path)[0] else ()
        case _ if config is None:
            return ()
        case Drain(workers):
            return tuple(
                edit("set", (*place.path, "drain"), True)
                for place in _places(config, workers)
                if not place.settings.drain
            )
        case Undrain(workers):
            return tuple(
                _without_drain(document, place) for place in _places(config, workers) if place.settings.drain
            )
        case SetWeight(worker, weight):
            return tuple(
                edit("set", (*place.path, "weight"), float(weight))
                for place in _places(config, (worker,))
                if place.settings.weight != weight
            )
        case AddWorker(role, address, port):
            pool, written = role.value, address.strip()
            own = [] if port is None else [edit("set", (pool, "worker", written, "bootstrap_port"), port)]
            return (edit("append", (pool, "workers"), written), *own)
        case RemoveWorker(worker):
            return tuple(_without_worker(config, worker))
        case _:
            return ()


def after_edits(loaded: Loaded, edits: Sequence[Edit]) -> Loaded:
    """The file as it would be read after the edits.

    Raises:
        CannotEdit: they are not possible in this file.
    """
    return load_bytes(loaded.path, apply_edits(loaded.text, edits).encode()) if edits else loaded


def _places(config: Config, workers: Sequence[str]) -> tuple[Place, ...]:
    """All places of these workers, but a table only once: it may stand for several ranks."""
    found = {place.path: place for worker in workers for place in places(config, worker)}
    return tuple(found.values())


def _without_drain(document: Mapping[str, object], place: Place) -> Edit:
    """Without the key; without the whole table if the key is all that it holds."""
    exists, table = _value(document, place.path)
    only = exists and isinstance(table, Mapping) and set(table) == {"drain"}
    return edit("unset", place.path if only else (*place.path, "drain"))


def _without_worker(config: Config, worker: str) -> list[Edit]:
    found = places(config, worker)
    out = [edit("remove", (place.pool, "workers"), place.written) for place in found]
    tables = dict.fromkeys(place.path for place in found if place.table is not None)
    return [*out, *(edit("unset", path) for path in tables)]


def _value(document: Mapping[str, object], path: Sequence[str]) -> tuple[bool, object]:
    """Whether the file says something there, and what."""
    try:
        return True, look_up(document, path)
    except KeyError:
        return False, None
