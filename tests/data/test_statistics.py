from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib import pyplot

from lit_fednas.cli import main
from lit_fednas.data import Dirichlet
from lit_fednas.data.statistics import partition_rows, partition_table, plot_partition

COUNTS = np.array([[2, 0, 1], [1, 1, 1]])


def test_table_by_hand() -> None:
    assert partition_table(COUNTS, ["a", "b", "cc"]).split("\n") == [
        "client  size  a  b  cc",
        "     0     3  2  .   1",
        "     1     3  1  1   1",
        " total     6  3  1   2",
    ]


def test_rows_by_hand() -> None:
    rows = partition_rows(COUNTS, ["a", "b", "cc"])
    assert rows == [["client", "size", "a", "b", "cc"], [0, 3, 2, 0, 1], [1, 3, 1, 1, 1]]


def test_dot_areas_are_proportional_to_counts() -> None:
    figure = plot_partition(COUNTS, ["a", "b", "cc"])
    dots = figure.axes[0].collections[0]
    where = [tuple(map(int, point)) for point in dots.get_offsets()]
    assert where == [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]
    sizes = dots.get_sizes()
    assert sizes / sizes.max() == pytest.approx([1, 0.5, 0.5, 0.5, 0.5])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b", "cc"]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (100, 10), (20, 100)])
def test_plots_of_all_sizes_can_be_drawn(clients: int, classes: int) -> None:
    targets = np.arange(2000) % classes
    counts = Dirichlet(1.0, min_size=1).partition(targets, clients).class_counts(targets, classes)
    figure = plot_partition(counts, [str(i) for i in range(classes)])
    figure.canvas.draw()
    width, height = figure.get_size_inches()
    assert 2 < width < 16
    assert 1 < height < 16
    assert sum(len(c.get_offsets()) for c in figure.axes[0].collections[:1]) == (counts > 0).sum()


def test_no_pyplot_state() -> None:
    before = pyplot.get_fignums()
    plot_partition(COUNTS, ["a", "b", "cc"])
    assert pyplot.get_fignums() == before


SOURCE = {"source": "lit_fednas.data.Digits"}
DATA = {**SOURCE, "partitioner": "lit_fednas.data.IID", "num_clients": 3}


@pytest.mark.parametrize("more", [{}, {"model": {"supernet": "nobody.Knows"}, "search": {"evaluations": 3}}])
def test_the_command_needs_the_data_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: dict[str, object]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.yaml").write_text(yaml.safe_dump({"data": DATA, **more}))
    assert main(["partition", "--config", "data.yaml"]) == 0
    table = capsys.readouterr().out
    assert main(["partition", *(word for key, value in DATA.items() for word in (f"--data.{key}", str(value)))]) == 0
    assert capsys.readouterr().out == table
    rows = (tmp_path / "partition" / "partition.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [["0", "432"], ["1", "431"], ["2", "431"]]  # of 1294


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "data.source, data.partitioner: not given; set in a file (--config FILE) or by options (--data.source"),
        (SOURCE, "data.partitioner: not given; set in a file"),
        (SOURCE | {"partitioner": "lit_fednas.data.IID"}, "data.num_clients: null does not suit IID; give 1 or more"),
        (DATA | {"partitioner": "lit_fednas.data.Dirichlet"}, "following arguments are required: alpha"),
    ],
)
def test_the_command_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.yaml").write_text(yaml.safe_dump({"data": given} if given else {}))
    assert main(["partition", "--config", "data.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lit-fednas: ")
    assert message in line
    assert not (tmp_path / "partition").exists()
