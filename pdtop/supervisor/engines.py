"""Which engine config.toml names, and the interpreter that has it installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pdtop.config.schema import Config

Name = Literal["smg", "sglang-router"]

#: Names an interpreter, as ``[server] engine_python`` does.
PYTHON_VARIABLE = "PDTOP_ROUTERS_PYTHON"
_LOOK_S = 20.0


class CannotRun(Exception):
    """Nothing can be started; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A published router. ``window_s``: how long it takes new requests after SIGTERM (with a long grace)."""

    name: Name
    module: str
    window_s: float
    reads_manifest: bool

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


SMG = Engine("smg", "smg.launch_router", 5.0, True)
SGLANG_ROUTER = Engine("sglang-router", "sglang_router.launch_router", 0.0, False)
ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (SMG, SGLANG_ROUTER)}


def engine_of(config: Config) -> Engine | None:
    """The engine to run as a child; None: pdtop's own, in this process. Raises :class:`CannotRun`."""
    name = config.server.engine
    if name == "external":
        raise CannotRun(
            '[server] engine = "external": somebody else runs that router; '
            'write "embedded", "smg" or "sglang-router" to have it run here'
        )
    return ENGINES.get(name or "embedded")


def interpreter(
    config: Config,
    engine: Engine,
    environ: Mapping[str, str],
    *,
    has: Callable[[str, str], bool] | None = None,
) -> str:
    """The Python that has the engine. Raises :class:`CannotRun` with how to install it.

    ``has`` tells whether an interpreter finds a package.
    """
    has = has or _has
    named = config.server.engine_python or environ.get(PYTHON_VARIABLE) or ""
    python = named or sys.executable
    if has(python, engine.package):
        return python
    if named:
        where = "[server] engine_python" if config.server.engine_python else f"${PYTHON_VARIABLE}"
        raise CannotRun(
            f"{engine.name} is not installed for {named} ({where}): {named} -m pip install {engine.name}"
        )
    raise CannotRun(
        f"{engine.name} is not installed: pip install 'pdtop[{engine.name}]'; "
        f"or name an interpreter that has it: [server] engine_python or ${PYTHON_VARIABLE}"
    )


def _has(python: str, package: str) -> bool:
    if python == sys.executable:
        return importlib.util.find_spec(package) is not None
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    try:
        found = subprocess.run(  # noqa: S603 - the operator's own interpreter, as a word
            [python, "-I", "-c", code, package], capture_output=True, timeout=_LOOK_S, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0
