"""Reads thousands of broken pages and fails if one raises or is read differently in the steady state.

Run it as ``python benchmarks/fuzz_pages.py [--pages 10000] [--seed N]`` from the project's folder. Pages are
real ones with lines inserted, removed, swapped, repeated, cut and changed, or plain noise. Each is read by a
reader that has seen the page before the change and by one that shares nothing with it; every accessor that
the console uses is called.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping
from itertools import count
from math import isnan
from pathlib import Path

from pdtop.metrics.catalogue import ENGINE_PREFIXES, WORKER_FAMILIES, WORKER_METRICS
from pdtop.metrics.exposition import Page, PageReader
from pdtop.metrics.router_page import RouterPageReader
from pdtop.metrics.timeline import Timeline
from pdtop.metrics.worker_page import WorkerNumbers, WorkerPageReader

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
SOURCES = (
    FIXTURES / "worker" / "sglang-0.5.23-decode-fresh.metrics.txt",
    FIXTURES / "worker" / "sglang-0.4.6.post5-decode.metrics.txt",
    FIXTURES / "worker" / "sglang-0.5.5-prefill-negative-itl.metrics.txt",
    FIXTURES / "router" / "sglang-router-0.3.2-pd.metrics.txt",
    FIXTURES / "router" / "vllm-router-0.1.17-pd.metrics.txt",
)
TEXTS = (
    b"5",
    b"NaN",
    b"+Inf",
    b"-1",
    b"1_0",
    b"",
    b"x",
    b"3 17",
    b" 4 ",
    b"6\r",
    b"0x1",
    b"1e999",
    b'9 # {a="b"} 1',
)
LINES = (
    b"sglang:num_running_reqs 3",
    b'sglang:num_running_reqs{a="\\',
    b"# TYPE sglang:num_running_reqs histogram",
    b"# TYPE",
    b"{",
    b'{"a"} 1',
    b"\xff\xfe\x00",
    b"nan",
    b"17",
    b'm{le="1",le="2"} 3',
    b"a" * 5000,
    b'a{b="' + b"\\" * 999 + b'"} 1',
)
_unlike = count()


def mutate(lines: list[bytes], chance: random.Random) -> None:
    """Change one thing."""
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    action = chance.randrange(9)
    if action == 0:
        lines.insert(at, chance.choice(LINES))
    elif action == 1 and len(lines) > 1:
        del lines[at]
    elif action == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif action == 3:
        lines.insert(other, lines[at])
    elif action == 4:
        lines[at] = lines[other]
    elif action == 5:
        lines[at] = lines[at].rpartition(b" ")[0] + b" " + chance.choice(TEXTS)
    elif action == 6:
        lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
    elif action == 7 and lines[at]:
        place = chance.randrange(len(lines[at]))
        lines[at] = lines[at][:place] + chance.randbytes(chance.randrange(3)) + lines[at][place + 1 :]
    else:
        lines[at] = lines[at].replace(b",", b" , ", 1)


def content(page: Page) -> Mapping[object, float]:
    return dict(zip(page.layout.series, page.values, strict=True))


def alike(left: Page, right: Page) -> bool:
    if (left.lines, left.bad_lines, left.duplicates, left.named) != (
        right.lines,
        right.bad_lines,
        right.duplicates,
        right.named,
    ):
        return False
    one, other = content(left), content(right)
    return one.keys() == other.keys() and all(
        value == other[key] or (isnan(value) and isnan(other[key])) for key, value in one.items()
    )


def use(numbers: WorkerNumbers) -> None:
    """Every accessor, as the console would."""
    for metric in WORKER_METRICS:
        numbers.gauge(metric.concept)
        numbers.gauge_mean(metric.concept)
        numbers.counter(metric.concept)
        whole = numbers.histogram(metric.concept)
        if whole is not None:
            whole.quantile(0.99)
            whole.share_within(0.3)
        numbers.histogram_split(metric.concept)
        numbers.histograms_by(metric.concept)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    originals = [path.read_bytes() for path in SOURCES]
    longest, began = 0.0, time.perf_counter()
    for number in range(options.pages):
        original = chance.choice(originals)
        wanted = WORKER_FAMILIES | {f"none {next(_unlike) % 50}"}
        reader, timeline = (
            PageReader(WORKER_FAMILIES, prefixes=ENGINE_PREFIXES),
            Timeline[WorkerNumbers](60.0),
        )
        reader.read(original)
        workers, routers = WorkerPageReader(), RouterPageReader()
        lines = original.split(b"\n")
        for step in range(3):
            for _ in range(chance.randrange(1, 6)):
                mutate(lines, chance)
            body = b"\n".join(lines) if chance.random() < 0.95 else chance.randbytes(chance.randrange(3000))
            start = time.perf_counter()
            steady = reader.read(body)
            longest = max(longest, time.perf_counter() - start)
            cold = PageReader(wanted, prefixes=ENGINE_PREFIXES).read(body)
            if not alike(steady, cold) or not alike(reader.read(body), cold):
                Path(f"fuzz-{number}.txt").write_bytes(body)
                raise SystemExit(f"page {number} is read in two ways; written to fuzz-{number}.txt")
            numbers = workers.read(body, float(step), truncated=chance.random() < 0.1)
            use(numbers)
            timeline.append(numbers)
            window = timeline.window(10.0)
            if window is not None:
                use(window.growth)
            workers.read_aggregate(body, 0.0)
            routers.read(body, 0.0).each_worker()
    seconds = time.perf_counter() - began
    print(f"{options.pages} pages, 3 changes each: none raised, none was read in two ways")
    print(f"{seconds:.0f} s in all, the slowest read took {longest * 1000:.1f} ms")


if __name__ == "__main__":
    main()
