"""Text of quantities, tables and lists."""

from __future__ import annotations

import sys
from math import nan
from unittest.mock import Mock

import pytest

from lit_fednas.formatting import (
    axis,
    cell_text,
    cost_text,
    figure_text,
    heading,
    listing,
    metric_text,
    percent,
    short,
    text_table,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (short(2_416_896, "B"), "2.42 MB"),
        (short(0.28, "ms", prefixed=False), "0.28 ms"),
        (short(None), "–"),
        (cost_text("macs", 766_080), "766 k"),
        (metric_text("loss", nan), "–"),
        (heading("test_accuracy_before"), "test accuracy before (%)"),
        (" ".join(map(heading, ("macs", "latency_ms", "val_loss"))), "MACs latency val loss"),
        (cell_text("clients", 3.5), "3.5"),
        (cell_text("number", 1200), "1,200"),
        (cell_text("rounds", None), "–"),
        (cell_text("bytes_up", 1200.0), "1.2 kB"),
        (cell_text("best_loss", 2.0), "2.0000"),
        (cell_text("val_accuracy_before", 0.5), "50.0"),
        (percent(0.7234), "72.3%"),
        (axis("bytes", 1.5e6), (1e6, "bytes sent one way (MB)")),
        (figure_text("_a\nb"), " _a b"),
        (figure_text("x" * 99, max_length=7), "xxx…xxx"),
        (text_table(["tier", "MB"], [["small", "1.5"], ["xl", "12.0"]]), "tier     MB\nsmall   1.5\nxl     12.0"),
        (listing({"fit": "Trains", "validate": "Tests"}), "  fit       Trains\n  validate  Tests"),
    ],
)
def test_texts(text, expected):
    assert text == expected


def test_tables_fit_a_terminal(monkeypatch):
    columns = ["tier", "architecture", "test accuracy"]
    rows = [["small", "d: [0,0,0,0], e: 0.25", "88.1"], ["xl", "d: 2", "88.2"]]
    file = text_table(columns, rows, left=2)
    assert max(map(len, file.splitlines())) == 43
    monkeypatch.setattr(sys.stdout, "isatty", Mock(return_value=True))
    monkeypatch.setenv("COLUMNS", "43")
    assert text_table(columns, rows, left=2) == file
    monkeypatch.setenv("COLUMNS", "36")
    assert text_table(columns, rows, left=2).splitlines() == [
        "tier   architecture             test",
        "                            accuracy",
        "small  d: [0, 0, 0, 0], e:      88.1",
        "       0.25",
        "xl     d: 2                     88.2",
    ]
    whole = ["12,345,678", "runs/lr=0.1,batch=32,width=8/version_0"]
    assert all(cell in text_table(["count", "run"], [whole]) for cell in whole)
