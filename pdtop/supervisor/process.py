"""One run of an engine: started under this process's life, its output passed on, ended gently or at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

BOOT = str(Path(__file__).with_name("boot.py"))
_READ = 1 << 16
_LONGEST_LINE = 1 << 16
_LAST_WORDS_S = 1.0


class EngineProcess:
    """``ended`` is set when it has gone; ``code`` then says how, negative for a signal.

    Its end is seen by the kernel's word alone: asyncio's own subprocesses count as running as long as
    anybody, a child of a child perhaps, holds their output open.
    """

    def __init__(self, process: subprocess.Popen[bytes], line: Callable[[str], object]) -> None:
        self._process = process
        self._line = line
        self.pid = process.pid
        self.ended = asyncio.Event()
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    @classmethod
    def start(
        cls,
        python: str,
        module: str,
        flags: Sequence[str],
        keys: Sequence[str],
        environ: Mapping[str, str],
        line: Callable[[str], object],
    ) -> EngineProcess:
        """``keys``: further flags, which nobody may see. ``line`` takes its output. Raises OSError."""
        process = subprocess.Popen(  # noqa: S603 - words of the operator's own file
            [python, BOOT, module, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl+C and a closed terminal are for pdtop, which ends it gently
        )
        told = json.dumps({"parent": os.getpid(), "flags": list(keys)})
        with suppress(ConnectionError), cast(IO[bytes], process.stdin) as stdin:
            stdin.write(told.encode())  # if it has ended already, its code says so
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

    @property
    def was_killed(self) -> bool:
        """By SIGKILL: nothing that it said can be the reason."""
        return self.code == -signal.SIGKILL

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
        loop = asyncio.get_running_loop()
        reading = loop.create_task(self._pass_on())
        gone = asyncio.Event()
        handle = os.pidfd_open(self.pid)
        loop.add_reader(handle, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what it may have left behind
        self._process.wait()
        with suppress(TimeoutError):
            await asyncio.wait_for(reading, _LAST_WORDS_S)
        self.ended.set()

    async def _pass_on(self) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), cast(IO[bytes], self._process.stdout)
        )
        pending = b""
        try:
            while data := await reader.read(_READ):
                *lines, pending = (pending + data).split(b"\n")
                if len(pending) > _LONGEST_LINE:
                    lines, pending = [*lines, pending], b""
                for line in lines:
                    self._line(line.decode("utf-8", "replace"))
            if pending:
                self._line(pending.decode("utf-8", "replace"))
        finally:
            transport.close()
