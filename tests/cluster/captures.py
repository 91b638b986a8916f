"""A board fed with one captured moment of a real cluster (tests/fixtures/real)."""

from __future__ import annotations

import csv
from pathlib import Path

from pdtop.cluster.answers import KeyUse
from pdtop.cluster.board import Board
from pdtop.cluster.interpret import health_reading, info_reading, loads_reading, metrics_reading
from pdtop.cluster.interpret_router import router_metrics_reading, router_reading
from pdtop.cluster.model import Role, Snapshot, State
from pdtop.cluster.readings import Answer
from pdtop.cluster.router_watch import RouterWatch
from pdtop.cluster.watch import About
from pdtop.metrics.router_page import RouterPageReader
from pdtop.metrics.worker_page import WorkerPageReader
from pdtop.routers import detect

REAL = Path(__file__).parent.parent / "fixtures" / "real"
AT = 100.0
KEYS = KeyUse()


def moments() -> list[str]:
    """Every captured moment, as ``versions/state``."""
    return sorted(str(path.parent.relative_to(REAL)) for path in REAL.glob("*/*/index.tsv"))


def snapshot_of(moment: str) -> Snapshot:
    """The moment half a second later, latencies over the lifetime: one capture has no window."""
    return board_of(moment).snapshot(AT + 0.5, 0.0, None)


def board_of(moment: str) -> Board:
    folder = REAL / moment
    with (folder / "index.tsv").open(encoding="utf-8") as table:
        rows = {row["file"]: row for row in csv.DictReader(table, delimiter="\t")}
    answers = {name: _answer(row, folder) for name, row in rows.items()}
    board = Board()
    for name in sorted({name.split(".")[0] for name in rows if not name.startswith("router")}):
        _worker(
            board,
            name,
            {n.removeprefix(f"{name}."): a for n, a in answers.items() if n.startswith(f"{name}.")},
        )
    _router(board, "smg" if "+smg" in moment else "sglang-router", answers)
    return board


def _answer(row: dict[str, str], folder: Path) -> Answer:
    path, seconds = folder / row["file"], float(row["seconds"] or 0)
    if row["status"] in ("refused", "timeout"):
        return Answer(AT, seconds, failure=State(row["status"]), detail=row["status"])
    body = path.read_bytes() if path.is_file() else b""
    return Answer(AT, seconds, int(row["status"]), {"content-type": row["content_type"] or ""}, body)


def _worker(board: Board, name: str, answers: dict[str, Answer]) -> None:
    role = Role.PREFILL if name.startswith("prefill") else Role.DECODE
    key = f"127.0.0.1:{(31100 if role is Role.PREFILL else 31200) + int(name[-1])}"
    board.add_worker(About(key, name, role))
    for file, answer in answers.items():
        if file == "metrics.txt":
            board.metrics(key, metrics_reading(answer, WorkerPageReader(), KEYS))
        elif file in ("v1_loads.json", "get_load.json"):
            board.loads(key, loads_reading(answer, KEYS))
        elif file.startswith("health"):
            board.health(key, health_reading(answer, "/health"))
        elif file == "server_info.json":
            board.info(key, info_reading(answer, KEYS))


def _router(board: Board, engine: str, answers: dict[str, Answer]) -> None:
    dialect = detect.DIALECTS[engine]
    board.add_router(RouterWatch("router"))
    if (listed := answers.get("router.workers.json")) is not None:
        loads = answers.get("router.get_loads.json")
        reading = router_reading(
            listed,
            answers.get("router.readiness.json"),
            alive=True,
            dialect=dialect,
            keys=KEYS,
            loads=dialect.loads(loads.body) if loads is not None else None,
        )
        board.router("router", reading)
    if (page := answers.get("router.metrics.txt")) is not None:
        board.router_metrics("router", router_metrics_reading(page, RouterPageReader(), KEYS))
