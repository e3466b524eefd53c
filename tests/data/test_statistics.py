import numpy as np
import pytest
from matplotlib import pyplot

from lit_fednas.data import Dirichlet, Partition
from lit_fednas.data.statistics import partition_rows, partition_table, plot_partition

TARGETS = np.array([0, 0, 0, 2, 2, 1])
PARTITION = Partition((np.array([0, 1, 3]), np.array([2, 4, 5])), 6)


def test_table_by_hand() -> None:
    assert partition_table(PARTITION, TARGETS, ["a", "b", "cc"]).split("\n") == [
        "client  size  a  b  cc",
        "     0     3  2  .   1",
        "     1     3  1  1   1",
        " total     6  3  1   2",
    ]


def test_rows_by_hand() -> None:
    rows = partition_rows(PARTITION, TARGETS, ["a", "b", "cc"])
    assert rows == [["client", "size", "a", "b", "cc"], [0, 3, 2, 0, 1], [1, 3, 1, 1, 1]]


def test_dot_areas_are_proportional_to_counts() -> None:
    figure = plot_partition(PARTITION, TARGETS, ["a", "b", "cc"])
    dots = figure.axes[0].collections[0]
    where = [tuple(map(int, point)) for point in dots.get_offsets()]
    assert where == [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]
    sizes = dots.get_sizes()
    assert sizes / sizes.max() == pytest.approx([1, 0.5, 0.5, 0.5, 0.5])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b", "cc"]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (100, 10), (20, 100)])
def test_plots_of_all_sizes_can_be_drawn(clients: int, classes: int) -> None:
    targets = np.arange(2000) % classes
    partition = Dirichlet(1.0, min_size=1).partition(targets, clients)
    figure = plot_partition(partition, targets, [str(i) for i in range(classes)])
    figure.canvas.draw()
    width, height = figure.get_size_inches()
    assert 2 < width < 16
    assert 1 < height < 16
    assert (
        sum(len(c.get_offsets()) for c in figure.axes[0].collections[:1])
        == (partition.class_counts(targets, classes) > 0).sum()
    )


def test_no_pyplot_state() -> None:
    before = pyplot.get_fignums()
    plot_partition(PARTITION, TARGETS, ["a", "b", "cc"])
    assert pyplot.get_fignums() == before
