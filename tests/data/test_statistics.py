from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from lit_fednas.analysis import Run
from lit_fednas.analysis.report.run_sections import partition
from lit_fednas.cli import main
from lit_fednas.data import ArrayFiles, ArraySource, ByColumn, Examples, FederatedDataModule
from lit_fednas.records.partition import plot_partition, write_partition

DATA = {"source": "lit_fednas.data.Digits", "partitioner": "lit_fednas.data.IID", "num_clients": 3}


def test_an_overview_describes_all_parts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,note,site,kind,target\n1,,a,u,no\n2,,a,v,yes\n3,,b,u,no\n4,,c,w,no\n")
    (tmp_path / "b.csv").write_text("x,site,kind,target\n1,a,u,yes\n")
    files = {"train": str(tmp_path / "a.csv"), "test": str(tmp_path / "b.csv")}
    source = ArrayFiles(files, client="site", inputs=["x", "kind"], categorical=["kind"])
    overview = FederatedDataModule(source, ByColumn("site"), server_val=1).overview()
    assert overview.parts == {
        "source": "ArrayFiles",
        "numbers": "x",
        "categories": "kind (3 values)",
        "target": "target (names)",
        "client": "site",
        "left out": "note",
        "groups": "site (3 values)",
        "inputs": "float32 [4], from 0 to 4",
        "task": "Classification, 2 outputs",
        "train": "4 examples of 2 classes",
        "val": "1 of train, held by the server",
        "test": "1 examples of 2 classes",
        "clients": overview.parts["clients"],  # the server's example is drawn
        "owners": overview.parts["owners"],
        "copies": "1 of 1 examples of test are copies of training examples; 1 different inputs have several classes",
    }
    assert str(overview).splitlines()[-3:] == ["class  train  test", "no         3     0", "yes        1     1"]


def test_owners_are_named_in_the_table_the_picture_and_the_report(tmp_path: Path) -> None:
    owners = {"site": np.repeat(["ann", "bob", "eve"], [3, 2, 1])}
    examples = Examples(torch.arange(6.0)[:, None], torch.tensor([0, 0, 1, 1, 1, 0]), owners)
    data = FederatedDataModule(ArraySource(examples), ByColumn("site"), server_val=0)
    data.setup("fit")
    table, _ = write_partition(data.class_counts, data.strata, tmp_path, data.owners)
    assert table.read_text().splitlines() == ["client,owner,size,0,1", "0,ann,3,2,1", "1,bob,2,0,2", "2,eve,1,1,0"]
    (axes, _) = plot_partition(data.class_counts, data.strata, data.owners).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["ann", "bob", "eve"]
    (charts,) = partition(Run(tmp_path))
    assert "client 1 bob" in charts.__html__()


def test_an_overview_cuts_long_lists() -> None:
    examples = Examples(torch.zeros(1020, 3), torch.arange(1020) % 102, {"site": np.arange(1020) // 102})
    data = FederatedDataModule(ArraySource(examples), ByColumn("site"), server_val=0)
    overview = data.overview()
    assert overview.parts["clients"] == "10, of 102 to 102 examples, median 102"
    table = str(overview).partition("\n\n")[2].splitlines()
    assert (len(table), table[-1]) == (22, "...")
    assert [line.split() for line in table[1:21]] == [[str(label), "10"] for label in range(20)]


def test_the_command_needs_the_data_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    others = {"model": {"supernet": "nobody.Knows"}, "search": {"evaluations": 3}}
    (tmp_path / "data.yaml").write_text(yaml.safe_dump({"data": DATA, **others}))
    assert main(["partition", "--config", "data.yaml"]) == 0
    table = capsys.readouterr().out
    Path("partition/partition.csv").write_text("mine")  # a file of the user
    assert main(["partition", *(word for key, value in DATA.items() for word in (f"--data.{key}", str(value)))]) == 0
    assert capsys.readouterr().out == table
    rows = (tmp_path / "partition" / "partition.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [["0", "432"], ["1", "431"], ["2", "431"]]
    Path("partition/partition.png").write_text("mine")
    assert "output: partition/partition.csv exists" in refused("partition", "--config", "data.yaml")
    assert main(["partition", "--config", "data.yaml", "--overwrite", "true"]) == 0
