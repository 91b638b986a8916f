"""What the whole console costs at 7, 64 and 256 workers, beside Prometheus over the same pages.

    pip install -e . pyte && python benchmarks/console.py [--workers 7 64 256] [--runs 5]

Simulated workers (``pdtop.simulator.farm``) serve pages of a real worker's size in another process. The
console runs under a pty of 160x50 with ``/metrics`` every second. Prometheus (Debian package) scrapes the
same farm in the same run, if it is installed. Figures are medians of the runs: CPU of the process over the
window per scrape served, resident memory, bytes written to the terminal, time to the first worker's numbers
on the screen, and time from a key to the frame that answers it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from terminal import Terminal, usage

WARM_UP_S = 10.0
WINDOW_S = 20.0


@contextmanager
def farm(workers: int, folder: Path) -> Iterator[tuple[Path, str]]:
    """A running farm: its config.toml (a read a second) and the address of its control port."""
    config = folder / "config.toml"
    command = [sys.executable, "-m", "pdtop.simulator.farm", "--workers", str(workers), "--ranks", "2"]
    process = subprocess.Popen([*command, "--config", str(config)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        control = json.loads(process.stdout.readline())["control"]
        with config.open("a", encoding="utf-8") as file:
            file.write("[console]\ninterval_secs = 1.0\n")
        yield config, control
    finally:
        process.terminate()
        process.wait(10)


def stats(control: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{control}/stats", timeout=5) as answer:  # noqa: S310 - loopback
        found: dict[str, Any] = json.load(answer)
        return found


def console(config: Path, control: str) -> dict[str, float]:
    """One run of the console."""
    run = Terminal([sys.executable, "-m", "pdtop", "--no-mouse", str(config)])
    run.start()
    try:
        seen = run.pump(20.0, until=lambda: _has_numbers(run.text()))
        first = time.perf_counter() - run.started if seen else float("nan")
        run.pump(WARM_UP_S, draw=False)
        before, scraped, written = run.usage(), stats(control), run.bytes_out
        began = time.perf_counter()
        run.pump(WINDOW_S, draw=False)
        seconds = time.perf_counter() - began
        after, now = run.usage(), stats(control)
        scrapes = now["scrapes"] - scraped["scrapes"]
        cpu = after.cpu_s - before.cpu_s
        return {
            "cpu_percent": 100 * cpu / seconds,
            "ms_per_scrape": 1000 * cpu / max(scrapes, 1),
            "scrapes_per_s": scrapes / seconds,
            "rss_mb": after.rss / 2**20,
            "kb_per_s": (run.bytes_out - written) / seconds / 1024,
            "first_data_s": first,
            "key_p99_ms": 1000 * _key_latency(run),
        }
    finally:
        run.stop()


def _has_numbers(screen: str) -> bool:
    """Whether a worker's row shows its state and a figure."""
    rows = [line for line in screen.splitlines() if "127.0.0.1:" in line or ":3" in line]
    return any(" ok " in row and any(part.isdigit() for part in row.split()) for row in rows)


def _key_latency(run: Terminal, presses: int = 100) -> float:
    """p99 of the time from a cursor key to the first bytes that answer it, in seconds."""
    took: list[float] = []
    for press in range(presses):
        run.pump(0.05 + 0.013 * (press % 7), draw=False)
        before, began = run.bytes_out, time.perf_counter()
        run.send("j" if press % 2 == 0 else "k")
        run.pump(2.0, until=lambda start=before: run.bytes_out > start, draw=False)  # type: ignore[misc]
        took.append(time.perf_counter() - began)
    return statistics.quantiles(took, n=100)[98]


def prometheus(config: Path, control: str, folder: Path) -> dict[str, float] | None:
    """One run of Prometheus over the same pages; None if it is not installed."""
    program = shutil.which("prometheus")
    if program is None:
        return None
    import tomllib

    document = tomllib.loads(config.read_text())
    targets = [*document["prefill"]["workers"], *document["decode"]["workers"]]
    settings = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "sglang", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    process = subprocess.Popen(
        [*command, "--web.listen-address=127.0.0.1:0"], stderr=subprocess.DEVNULL, cwd=folder
    )
    try:
        time.sleep(WARM_UP_S)
        before, scraped = usage(process.pid), stats(control)
        began = time.perf_counter()
        time.sleep(WINDOW_S)
        seconds = time.perf_counter() - began
        after, now = usage(process.pid), stats(control)
        cpu = after.cpu_s - before.cpu_s
        scrapes = now["scrapes"] - scraped["scrapes"]
        return {
            "cpu_percent": 100 * cpu / seconds,
            "ms_per_scrape": 1000 * cpu / max(scrapes, 1),
            "scrapes_per_s": scrapes / seconds,
            "rss_mb": after.rss / 2**20,
        }
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder / "tsdb", ignore_errors=True)


def _line(name: str, workers: int, runs: list[dict[str, float]]) -> str:
    cells = [f"{key} {statistics.median(run[key] for run in runs):.2f}" for key in runs[0]]
    return f"{name:<10} {workers:>4} workers  {len(runs)} runs  " + "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, nargs="+", default=[7, 64, 256])
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} cores")
    for workers in args.workers:
        with tempfile.TemporaryDirectory() as name, farm(workers, Path(name)) as (config, control):
            folder = Path(name)
            print("pages", stats(control)["page_bytes"])
            print(_line("pdtop", workers, [console(config, control) for _ in range(args.runs)]), flush=True)
            others = [prometheus(config, control, folder) for _ in range(args.runs)]
            measured = [run for run in others if run is not None]
            if measured:
                print(_line("prometheus", workers, measured), flush=True)
            else:
                print("prometheus is not installed (Debian package prometheus): left out")


if __name__ == "__main__":
    main()
