"""One run of an engine: started under this process's life, its output passed on, ended gently or at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

BOOT = str(Path(__file__).with_name("boot.py"))
_READ = 1 << 16
_LONGEST_LINE = 1 << 16


class EngineProcess:
    """``ended`` is set when it has gone; ``code`` then says how, negative for a signal."""

    def __init__(self, process: asyncio.subprocess.Process, line: Callable[[str], object]) -> None:
        self._process = process
        self._line = line
        self.pid = process.pid
        self.ended = asyncio.Event()
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    @classmethod
    async def start(
        cls,
        python: str,
        module: str,
        flags: Sequence[str],
        keys: Sequence[str],
        environ: Mapping[str, str],
        line: Callable[[str], object],
    ) -> EngineProcess:
        """``keys``: further flags, which nobody may see. ``line`` takes its output. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *(python, BOOT, module, *flags),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl+C and a closed terminal are for pdtop, which ends it gently
        )
        told = json.dumps({"parent": os.getpid(), "flags": list(keys)})
        stdin = cast(asyncio.StreamWriter, process.stdin)
        with suppress(ConnectionError):  # ended already: seen by its code
            stdin.write(told.encode())
            await stdin.drain()
        stdin.close()
        return cls(process, line)

    @property
    def code(self) -> int | None:
        return self._process.returncode

    @property
    def how(self) -> str:
        """How it ended, in words."""
        code = self.code
        if code is None:
            return "it runs"
        if code >= 0:
            return f"it ended with code {code}"
        try:
            return f"it was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was ended by signal {-code}"

    def terminate(self) -> None:
        """SIGTERM: it ends by itself when its streams have."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, to it and whatever it started."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> None:
        """Return when it has ended and its last words are passed on."""
        await asyncio.shield(self._watching)

    async def _watch(self) -> None:
        reading = asyncio.get_running_loop().create_task(self._pass_on())
        await self._process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what it may have left behind
        with suppress(TimeoutError):
            await asyncio.wait_for(reading, 1.0)
        self.ended.set()

    async def _pass_on(self) -> None:
        stdout = cast(asyncio.StreamReader, self._process.stdout)
        pending = b""
        while data := await stdout.read(_READ):
            *lines, pending = (pending + data).split(b"\n")
            if len(pending) > _LONGEST_LINE:
                lines, pending = [*lines, pending], b""
            for line in lines:
                self._line(line.decode("utf-8", "replace"))
        if pending:
            self._line(pending.decode("utf-8", "replace"))
