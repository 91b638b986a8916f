"""Consoles that are killed while they set, drain and undo: a program of its own that prints JSON.

The cluster of each lives in its process and dies with it. Each is forked from a process that has imported
everything and has no threads yet.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from pdtop.operations.model import Drain, Request, SetValue, Undo
from tests.operations.plant import Console, Plant, plant

MOMENTS = 20
_AT_ONCE = 5
#: One round of a script takes about so long.
_ROUND_S = 0.6


async def operate(folder: Path, begun: int) -> None:
    """Set, drain and undo for ever; a byte into ``begun`` when the first begins."""
    async with plant(folder, real=True) as cluster, cluster.console() as console:
        (folder / "before.toml").write_text(cluster.text)
        os.write(begun, b"x")
        for number in itertools.count():
            await rounds(cluster, console, number)


async def rounds(cluster: Plant, console: Console, number: int) -> None:
    value = f"0.{31 + number % 60}"
    requests: tuple[Request, ...] = (
        SetValue(("prefill", "cache_aware_threshold"), value),
        Drain((cluster.decode[number % 3].key,)),
        Undo(),
        Undo(),
    )
    for request in requests:
        operation = console.operator.start(await asyncio.to_thread(console.operator.plan, request))
        if not operation.ended:
            await asyncio.to_thread(console.operator.wait, operation.id, 0.05)


def killed_after(folder: Path, seconds: float) -> tuple[int, int, float]:
    """A child at work; its id, the end of its pipe, and how long it may work."""
    folder.mkdir()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            asyncio.run(operate(folder, writing))
        except BaseException:  # noqa: BLE001 - a child must not go on as its parent
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
    os.close(writing)
    return child, reading, seconds


def main(root: Path) -> None:
    chance = random.Random(20)
    moments = [(root / str(number), chance.uniform(0.0, _ROUND_S)) for number in range(MOMENTS)]
    ends = []
    for start in range(0, MOMENTS, _AT_ONCE):
        children = [killed_after(folder, seconds) for folder, seconds in moments[start : start + _AT_ONCE]]
        for child, reading, seconds in children:
            begun = os.read(reading, 1)
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            os.close(reading)
            ends.append(begun == b"x" and os.WIFSIGNALED(status))
    print(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
