"""Page reading against prometheus-client's parser: ratios, time a page, memory of 256 targets.

Run it as ``python benchmarks/parse.py`` from the project's folder. Every figure is the median of several
runs, both parsers taking turns. What the rows mean:

- *steady*: a target's next scrape. The values differ from scrape to scrape, the layout does not.
- *cold*: the first page of a target, others of its kind being watched already (their pages differ in values
  and process ids), and its layout found anew.
- *first*: the first page that the process ever sees.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from prometheus_client.parser import text_string_to_metric_families

from pdtop.metrics import dissection, exposition
from pdtop.metrics.timeline import Timeline
from pdtop.metrics.worker_page import WorkerNumbers, WorkerPageReader

TESTS = Path(__file__).parent.parent / "tests"
REAL = TESTS / "fixtures" / "real" / "sglang-0.5.23+sglang-router-0.3.2"
LARGE = TESTS / "fixtures" / "cases" / "s14-large-page"
PAGES = {
    "prefill, busy": REAL / "2p2d-load" / "prefill0.metrics.txt",
    "decode, idle": REAL / "2p2d-idle" / "decode0.metrics.txt",
    "prefill, busy, 2": REAL / "2p2d-saturated" / "prefill1.metrics.txt",
    "decode, busy": REAL / "2p2d-load" / "decode0.metrics.txt",
}
VERSIONS = 8  # of a page, each with other values


def versions(body: bytes, count: int) -> list[bytes]:
    """The page as it looks at ``count`` moments: every value that is not 0 has moved."""

    def moved(step: int) -> Callable[[re.Match[bytes]], bytes]:
        return lambda match: match[1] + repr(float(match[2]) + step).encode()

    return [re.sub(rb"(?m)^([^#\n].* )([1-9][0-9]*\.[0-9]+)$", moved(step), body) for step in range(count)]


def seconds(action: Callable[[], object]) -> float:
    gc.collect()
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def forget() -> None:
    """What a new process does not have."""
    for cached in (
        exposition._dialect,
        exposition._shared_pick,
        exposition._same,
        dissection._parse_labels_once,
        dissection._label_names,
        dissection._spelling,
        dissection._bound_once,
    ):
        cached.cache_clear()


def measure(body: bytes, runs: int) -> dict[str, float]:
    """Milliseconds a page: prometheus-client, steady, cold, first; and the ratios of their medians."""
    pages = versions(body, VERSIONS)
    texts = [page.decode() for page in pages]
    others = [re.sub(rb'pid="\d+"', b'pid="%d"' % pid, page) for pid, page in enumerate(pages)]
    watched = WorkerPageReader()
    kept = watched.read(body, 0.0)
    times: dict[str, list[float]] = {"prometheus-client": [], "steady": [], "cold": [], "first": []}

    def oracle() -> None:
        for text in texts:
            list(text_string_to_metric_families(text))

    def steady() -> None:
        for _ in range(20):
            for page in pages:
                watched.read(page, 0.0)

    def cold() -> None:
        for page in others:
            WorkerPageReader().read(page, 0.0)

    for _ in range(runs):
        times["prometheus-client"].append(seconds(oracle) / len(texts))
        times["steady"].append(seconds(steady) / len(pages) / 20)
        times["cold"].append(seconds(cold) / len(others))
    for _ in range(runs):
        forget()
        times["first"].append(seconds(lambda: WorkerPageReader().read(body, 0.0)))
    assert kept.engine_series > 0
    result = {name: median(some) * 1000 for name, some in times.items()}
    for name in ("steady", "cold", "first"):
        result[f"{name} ratio"] = result["prometheus-client"] / result[name]
    return result


def large_page(runs: int) -> dict[str, float]:
    """Milliseconds for the page of 84 585 lines, the first time and steady."""
    made = subprocess.run(
        [sys.executable, str(LARGE / "gen.py"), "64", "30"], capture_output=True, check=True
    ).stdout
    first: list[float] = []
    steady: list[float] = []
    for _ in range(runs):
        forget()
        read = partial(WorkerPageReader().read, made, 0.0)
        first.append(seconds(read))
        steady.append(seconds(read))
    return {"bytes": len(made), "first": median(first) * 1000, "steady": median(steady) * 1000}


def memory(body: bytes, targets: int, scrapes: int) -> dict[str, float]:
    """MB that ``targets`` readers of alike pages hold, without and with a minute's timeline each."""
    forget()
    gc.collect()
    tracemalloc.start()
    readers = [WorkerPageReader() for _ in range(targets)]
    newest = [
        reader.read(re.sub(rb'pid="\d+"', b'pid="%d"' % pid, body), 0.0) for pid, reader in enumerate(readers)
    ]
    gc.collect()
    read = tracemalloc.get_traced_memory()[0]
    timelines: list[Timeline[WorkerNumbers]] = [Timeline(60.0) for _ in readers]
    for scrape, page in enumerate(versions(body, scrapes)):
        for pid, (reader, timeline) in enumerate(zip(readers, timelines, strict=True)):
            own = re.sub(rb'pid="\d+"', b'pid="%d"' % pid, page)
            timeline.append(reader.read(own, float(scrape)))
    del newest
    gc.collect()
    whole = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {"readers": read / 1e6, "with timelines": whole / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report: dict[str, dict[str, float]] = {}
    for name, path in PAGES.items():
        body = path.read_bytes()
        report[f"{name} ({len(body) / 1000:.0f} kB)"] = measure(body, options.runs)
    report["84 585 lines"] = large_page(options.runs)
    report["256 targets, MB"] = memory(PAGES["decode, busy"].read_bytes(), 256, 30)
    if options.json:
        print(json.dumps(report, indent=1))
        return
    for name, figures in report.items():
        print(name)
        for what, figure in figures.items():
            print(f"    {what:20s} {figure:12.3f}" + ("x" if what.endswith("ratio") else ""))


if __name__ == "__main__":
    main()
