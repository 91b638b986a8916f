"""The page reader: equal to prometheus-client on every fixture, tolerant of everything else."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pdtop.metrics.exposition import Page, PageReader
from tests.metrics.support import body_of, content, equal_pages, fresh_reader, oracle, pages, same, short

ALL_PAGES = list(pages())


def test_all_fixtures_are_found() -> None:
    assert len(ALL_PAGES) > 200


@pytest.mark.parametrize("path", ALL_PAGES, ids=short)
def test_fixture_reads_as_prometheus_client_reads_it(path: Path) -> None:
    body = body_of(path)
    expected, names, repeated = oracle(body.decode())
    reader = PageReader(names)
    cold = reader.read(body)
    assert same(content(cold), expected)
    assert (cold.bad_lines, cold.duplicates) == (0, repeated)
    assert cold.lines == len(body.splitlines())
    steady = reader.read(body)
    assert equal_pages(cold, steady)
    assert steady.layout is cold.layout


def read(text: str | bytes, *wanted: str) -> Page:
    body = text.encode() if isinstance(text, str) else text
    return PageReader(frozenset(wanted or {"m"}), prefixes=("sglang:",)).read(body)


def values(page: Page) -> list[float]:
    return list(page.values)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("m 1", 1.0),
        ("m 1.5e3", 1500.0),
        ("m\t7", 7.0),
        ("  m   7  ", 7.0),
        ("m 7\r", 7.0),
        ("m{} 7", 7.0),
        ('m{a="b",} 7', 7.0),
        ('m { a = "b" , c = "d" } 7', 7.0),
        ('m{a="b"}7', 7.0),
        ("m 7 1700000000000", 7.0),
        ('m{a="b"} 7 1700000000.5', 7.0),
        ('m{a="}"} 7 # {trace_id="x y # z"} 0.5 1.5', 7.0),
        ("m 7 # {} 1", 7.0),
        ("m +Inf", math.inf),
        ("m -Inf", -math.inf),
        ("m -0.5", -0.5),
    ],
)
def test_one_good_line(line: str, value: float) -> None:
    page = read(line)
    assert values(page) == [value]
    assert (page.lines, page.bad_lines, page.duplicates) == (1, 0, 0)


def test_nan_is_read_as_nan() -> None:
    assert math.isnan(read("m NaN").values[0])


@pytest.mark.parametrize(
    "line",
    [
        "m",
        "m ",
        "m x",
        "m 1_000",
        "m 1 2 3",
        "m 1 x",
        "m 1# {}",
        "m 0x10",
        "1m 1",
        "m-x 1",
        'm{a="b} 1',
        "m{a=b} 1",
        'm{a="b" c="d"} 1',
        'm{a="b""} 1',
        'm{a="b",c="} 1',
        'm{a="b",a="c"} 1',
        'm{1a="b"} 1',
        'm{a="b"',
        '{a="b"} 1',
        "<!-- injected by proxy -->",
        "m\x001 1",
    ],
)
def test_a_bad_line_is_counted_and_costs_nothing_else(line: str) -> None:
    page = read(f"# TYPE m gauge\n{line}\nm 5\n")
    assert values(page) == [5.0]
    assert (page.lines, page.bad_lines) == (3, 1)


def test_a_bad_value_among_plain_lines_is_found() -> None:
    page = read('m{a="1"} 1\nm{a="2"} x\nm{a="3"} 3\n')
    assert values(page) == [1.0, 3.0]
    assert page.bad_lines == 1


def test_escapes_in_label_values() -> None:
    page = read(r'm{path="C:\\x\"y\"\nz {a}, b=c #1",odd="\t\q"} 1')
    assert dict(page.layout.series[0].labels) == {"path": 'C:\\x"y"\nz {a}, b=c #1', "odd": r"\t\q"}


def test_text_that_is_not_utf8_is_kept_replaced() -> None:
    page = read(b'm{a="\xff\xfe"} 1\n\xff\xfe\xfd\n')
    assert dict(page.layout.series[0].labels) == {"a": "\ufffd\ufffd"}
    assert page.bad_lines == 1


def test_blank_lines_and_comments_are_no_bad_lines() -> None:
    page = read("\n\r\n# a comment\n#\n#x\n  # TYPE m gauge\nm 1\n# EOF\n")
    assert (values(page), page.bad_lines, page.lines) == ([1.0], 0, 8)
    assert page.layout.kinds == (("m", "gauge"),)


def test_an_empty_page() -> None:
    page = read("")
    assert (values(page), page.lines, page.bad_lines, page.size) == ([], 0, 0, 0)


def test_a_missing_final_newline_loses_nothing_unless_the_body_was_cut() -> None:
    reader = PageReader(frozenset({"m"}))
    assert values(reader.read(b'm 1\nm{a="b"} 12')) == [1.0, 12.0]
    cut = reader.read(b'm 1\nm{a="b"} 12', truncated=True)
    assert (values(cut), cut.lines) == ([1.0], 1)
    assert values(reader.read(b"m 1", truncated=True)) == []


HISTOGRAM = 'h_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\nh_sum 3\nh_count 2\n'


def parts(page: Page) -> list[str]:
    return sorted(one.part for one in page.layout.series)


def test_a_histogram_has_its_type_from_the_page_or_from_its_parts() -> None:
    for text in (f"# TYPE h histogram\n{HISTOGRAM}", HISTOGRAM, f"{HISTOGRAM}# TYPE h histogram\n"):
        page = read(text, "h")
        assert parts(page) == ["bucket", "bucket", "count", "sum"]
        assert [one.le for one in page.layout.series if one.part == "bucket"] == [1.0, math.inf]


def test_the_type_decides_not_the_name() -> None:
    gauge = "# TYPE h gauge\nh 4\n"
    assert parts(read(gauge + HISTOGRAM, "h")) == [""]
    # A type that comes late counts as well.
    assert parts(read("h 4\n" + HISTOGRAM + "# TYPE h gauge\n", "h")) == [""]
    page = read('# TYPE c_count gauge\nc_count{gt="1",le="2"} 5\n', "c_count", "c")
    assert [(one.family, one.part, dict(one.labels)) for one in page.layout.series] == [
        ("c_count", "", {"gt": "1", "le": "2"})
    ]


def test_the_first_type_of_a_family_holds() -> None:
    page = read("# TYPE m gauge\nm 1\n# TYPE m counter\n")
    assert (page.layout.kinds, page.layout.growing) == ((("m", "gauge"),), 0)


def test_a_summary_has_quantiles_sum_and_count() -> None:
    page = read('# TYPE s summary\ns{quantile="0.5"} 1\ns_sum 2\ns_count 3\n', "s")
    assert parts(page) == ["", "count", "sum"]


def test_openmetrics_declares_a_counter_without_its_suffix() -> None:
    page = read("# TYPE c counter\nc_total 5\nc_created 1\n# EOF\n", "c_total")
    assert (values(page), page.layout.kinds, page.layout.growing) == ([5.0], (("c_total", "counter"),), 1)


def test_every_counter_of_a_prefix_can_be_wanted() -> None:
    text = (
        "# TYPE e:a_total counter\ne:a_total 1\ne:b_total 2\n# TYPE e:c_total gauge\ne:c_total 3\nx_total 4\n"
    )
    page = PageReader(frozenset(), counters_of=("e:",)).read(text.encode())
    assert [one.family for one in page.layout.series] == ["e:a_total", "e:b_total"]


def test_a_bucket_needs_a_bound_that_is_a_number() -> None:
    useless = 'h_bucket 1\nh_bucket{le="x"} 2\nh_bucket{le="NaN"} 2\nh_bucket{le=""} 2\n'
    page = read(f'# TYPE h histogram\n{useless}h_bucket{{le="1"}} 3\n', "h")
    assert (values(page), page.bad_lines) == ([3.0], 0)


@pytest.mark.parametrize(
    "labels",
    [
        'a="x,le=",le="1"',
        'a="x\\",le=\\"9\\"",le="1"',
        'le="1",a=",le="',
        'a="",le="1"',
        'a="x=",le="1",b="le"',
    ],
)
def test_a_bound_is_found_behind_any_label_value(labels: str) -> None:
    for text in (f"h_bucket{{{labels}}} 3\n", f'h_bucket{{b="c",le="2"}} 1\nh_bucket{{{labels}}} 3\n'):
        page = read(text, "h")
        bucket = page.layout.series[page.values.index(3.0)]
        assert (bucket.part, bucket.le) == ("bucket", 1.0)


def test_series_given_twice_are_counted_and_the_first_is_taken() -> None:
    page = read('m{a="1",b="2"} 7\nm{b="2",a="1"} 9\nm{a="1",b="3"} 1\nx{a="1"} 1\nx{a="1"} 1\n')
    assert (values(page), page.duplicates) == ([7.0, 1.0], 2)


def test_spelling_does_not_hide_a_repetition() -> None:
    page = read('m{a="1"} 7\nm {a="1"} 8\nm{ a="1",} 9\nx 1\nx{} 2\n')
    assert (values(page), page.duplicates) == ([7.0], 3)


def test_repetitions_are_found_on_pages_of_other_targets_too() -> None:
    text = b'm{a="1",b="2"} 7\nm{b="2",a="1"} 9\n'
    for _ in range(3):
        page = PageReader(frozenset({"m"})).read(text)
        assert (values(page), page.duplicates) == ([7.0], 1)


def test_what_another_page_said_of_a_name_does_not_stick() -> None:
    for kind, expected in (("histogram", ["count"]), ("gauge", []), ("histogram", ["count"])):
        assert parts(read(f"# TYPE h {kind}\nh_count 2\n", "h")) == expected


def test_counters_come_first_then_sums_then_the_rest() -> None:
    text = "# TYPE g gauge\ng 1\n# TYPE h histogram\nh_sum 2\nh_count 3\n# TYPE c counter\nc 4\n"
    layout = read(text, "g", "h", "c").layout
    assert [(one.family, one.part) for one in layout.series] == [
        ("c", ""),
        ("h", "count"),
        ("h", "sum"),
        ("g", ""),
    ]
    assert (layout.growing, layout.windowed) == (2, 3)


def test_the_order_of_lines_makes_no_other_layout() -> None:
    one, other = read('m 1\nm{a="b"} 2\nx 3\n'), read('x 3\nm{a="b"} 2\nm 1\n')
    assert one.layout is other.layout
    assert values(one) == values(other) == [1.0, 2.0]


def test_targets_alike_share_one_layout() -> None:
    text = b'# TYPE m gauge\nm{pid="%s",a="b"} 1\n'
    first = PageReader(frozenset({"m"}), ordinal="pid").read(text % b"11")
    second = PageReader(frozenset({"m"}), ordinal="pid").read(text % b"22")
    assert first.layout is second.layout
    assert (set(first.ordinals), set(second.ordinals)) == ({"11"}, {"22"})
    assert dict(first.layout.series[0].labels) == {"a": "b", "pid": "0"}


def test_replaced_values_stay_apart() -> None:
    reader = PageReader(frozenset({"m"}), ordinal="pid")
    page = reader.read(b'm{pid="22"} 1\nm{pid="11"} 2\nm{pid="33"} 3\n')
    assert [
        (dict(one.labels)["pid"], value) for one, value in zip(page.layout.series, page.values, strict=True)
    ] == [
        ("0", 1.0),
        ("1", 2.0),
        ("2", 3.0),
    ]
    again = reader.read(b'm{pid="11"} 2\nm{pid="33"} 3\n')
    assert (values(again), set(again.ordinals), again.duplicates) == ([2.0, 3.0], {"11", "33"}, 0)


def test_prune_keeps_what_it_names() -> None:
    reader = PageReader(
        frozenset({"m"}), prune=lambda series: [i for i, one in enumerate(series) if one.labels]
    )
    body = b'm 1\nm{a="b"} 2\n'
    assert values(reader.read(body)) == values(reader.read(body)) == [2.0]


def test_series_are_counted_by_prefix_wanted_or_not() -> None:
    page = read("sglang:x 1\nsglang:y 2\nother 3\n")
    assert page.named == (2, 1)


def test_a_page_too_long_for_a_template_is_read_all_the_same() -> None:
    reader = PageReader(frozenset({"m"}))
    for value in (1.0, 2.0):
        page = reader.read(b"#\n" * 100_001 + f"m {value}\n".encode())
        assert (values(page), page.lines) == ([value], 100_002)


def test_a_steady_page_is_judged_line_by_line() -> None:
    reader = fresh_reader(frozenset({"m"}))
    reader.read(b"# TYPE m gauge\nm 1\nx 2\n")
    for body, expected, bad in (
        (b"# TYPE m gauge\nm 5\nx 2\n", [5.0], 0),
        (b"# TYPE m gauge\nm 5\nx y\n", [5.0], 1),
        (b"# TYPE m gauge\nm5\nx 2\n", [], 1),
        (b"# TYPE m gauge\n15\nx 2\n", [], 1),
        (b"# TYPE m gauge\nnan\nx 2\n", [], 1),
        (b"# TYPE m gauge\nm 1_0\nx 2\n", [], 1),
        (b"# TYPE m gauge\nm 5 170\nx 2\n", [5.0], 0),
        (b"# TYPE m gauge\nx 2\nm 6\n", [6.0], 0),
        (b"# TYPE m gauge\nm 7\nm 8\n", [7.0], 0),
        (b"m 9\nx 2\n", [9.0], 0),
    ):
        page = reader.read(body)
        assert (list(page.values), page.bad_lines) == (expected, bad), body
        assert equal_pages(
            page, PageReader(frozenset({"m"}), prefixes=("sglang:", "sglang_", "vllm:")).read(body)
        )


def test_an_endless_page_is_cut() -> None:
    body = b"ab\n" * 250_000 + b"m 1\n"
    page = PageReader(frozenset({"m"})).read(b"m 7\n" + body)
    assert (values(page), page.bad_lines, page.lines) == ([7.0], 200_000, 200_001)


def test_endless_names_and_labels_are_read_and_not_remembered() -> None:
    reader = PageReader(frozenset({"m"}))
    for letter in "ab":
        text = f'{letter * 300_000} 1\nm{{x="{letter * 300_000}"}} 2\nm{{le="{"0" * 100_000}"}} 3\n'
        page = reader.read(text.encode())
        assert (sorted(page.values), page.bad_lines) == ([2.0, 3.0], 0)


@pytest.mark.parametrize(
    "line", ["m{" + 'a="b",' * 200_000, 'm{a="' + "\\\\" * 200_000, "m{" + "{" * 200_000]
)
def test_a_long_broken_line_takes_no_long_time(line: str) -> None:
    assert read(line).bad_lines == 1
