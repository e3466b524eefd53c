import logging
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.sparse import csr_array

from lit_fednas.cli import main
from lit_fednas.data import statistics
from lit_fednas.data.statistics import measures, partition_rows, partition_table, plot_partition, write_partition

COUNTS = np.array([[2, 0, 1], [1, 1, 1]])


def test_table_and_rows_by_hand() -> None:
    assert partition_table(COUNTS, ["a", "b", "cc"]).split("\n") == [
        "client  size  a  b  cc",
        "     0     3  2  .   1",
        "     1     3  1  1   1",
        " total     6  3  1   2",
    ]
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


def many(clients: int = 1000) -> np.ndarray:
    """Client k has k examples of one class and one of another."""
    counts = np.zeros((clients, 3), dtype=np.int64)
    counts[np.arange(clients), np.arange(clients) % 3] = np.arange(clients)
    counts[np.arange(clients), (np.arange(clients) + 1) % 3] = 1
    return counts


def test_the_table_of_many_clients_is_cut_off() -> None:
    counts = many()
    lines = partition_table(counts, ["a", "b", "cc"]).split("\n")
    assert [line.split()[:2] for line in lines[1:21]] == [[str(client), str(client + 1)] for client in range(20)]
    assert lines[21].split() == ["..."] * 5
    assert lines[22].split() == ["total", str(999 * 1000 // 2 + 1000), *map(str, counts.sum(axis=0))]
    assert lines[24].split() == ["1,000", "clients", "least", "25%", "median", "75%", "most"]
    assert lines[25].split() == ["examples", "1", "250.8", "500.5", "750.2", "1000"]
    assert lines[26].split() == ["classes", "1", "2", "2", "2", "2"]  # client 0 has one
    assert len(partition_table(many(200), ["a", "b", "cc"]).split("\n")) == 202


def test_the_class_mix_is_compared_with_that_of_all() -> None:
    counts = np.random.default_rng(0).integers(0, 5, (50, 6))
    counts[3] = 0
    found = measures(counts)["distance of the class mix"]
    everyone = counts.sum(axis=0) / counts.sum()
    for client, own in enumerate(counts):
        if own.sum():
            assert found[client] == pytest.approx(np.maximum(own / own.sum() - everyone, 0).sum())


def test_the_picture_of_many_clients_shows_some_and_a_summary_of_all() -> None:
    counts = many()
    figure = plot_partition(counts, ["a", "b", "cc"])
    figure.canvas.draw()
    dots, *histograms = figure.axes
    shown = np.arange(0, 1000, 5)
    assert dots.get_title() == "200 of 1,000 clients, evenly spaced by number"
    found = [(int(shown[int(column)]), int(row)) for column, row in dots.collections[0].get_offsets()]
    assert found == [(client, label) for client, label in np.argwhere(counts).tolist() if client % 5 == 0]
    labels = [int(label.get_text().replace(",", "")) for label in dots.get_xticklabels() if label.get_text()]
    assert max(labels) >= 900
    assert {label % 5 for label in labels} == {0}
    assert [axes.get_xlabel() for axes in histograms] == ["examples", "classes", "distance of the class mix"]
    assert [axes.patches[0].get_data().values.sum() for axes in histograms] == [1000] * 3
    assert histograms[0].patches[0].get_data().values.tolist() == [25] * 40


def test_of_many_classes_the_most_frequent_are_shown() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 5, (150, 250)) * (rng.random((150, 250)) < 0.5)
    frequent = [3, 10, *range(100, 198)]
    counts[:, frequent] += 10
    counts[:, frequent[::5]] += 10
    names = [f"c{label}" for label in range(250)]
    axes = plot_partition(csr_array(counts), names).axes[0]
    assert axes.get_title() == "80 of 150 clients, evenly spaced by number; the 100 most frequent of 250 classes"
    where = axes.collections[0].get_offsets().astype(int)
    assert sorted(where.tolist()) == np.argwhere(counts[np.arange(80) * 150 // 80][:, frequent]).tolist()
    header, *lines = (line.split() for line in partition_table(csr_array(counts), names).splitlines())
    assert header == ["client", "size", *(f"c{label}" for label in frequent[::5]), "..."]
    assert lines[7] == ["7", str(counts[7].sum()), *map(str, counts[7, frequent[::5]]), "..."]
    assert lines[150] == ["total", str(counts.sum()), *map(str, counts[:, frequent[::5]].sum(axis=0)), "..."]


def test_no_table_is_written_of_more_clients_than_one_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(statistics, "LARGEST_TABLE", 5)
    with caplog.at_level(logging.INFO, logger="lit_fednas"):
        write_partition(COUNTS, ["a", "b", "cc"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["partition.png"]
    assert "partition.csv is left out: 2 clients times 3 classes are more than 5" in caplog.text


SOURCE = {"source": "lit_fednas.data.Digits"}
DATA = {**SOURCE, "partitioner": "lit_fednas.data.IID", "num_clients": 3}


def test_the_command_needs_the_data_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    more = {"model": {"supernet": "nobody.Knows"}, "search": {"evaluations": 3}}
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
    assert message in line
    assert not (tmp_path / "partition").exists()
