from pathlib import Path

import numpy as np
import pytest
import yaml

from lit_fednas.cli import main
from lit_fednas.records.partition import measures, partition_table


def test_the_table_of_many_clients_is_cut_off() -> None:
    """Client k has k examples of one class and one of another."""
    clients = np.arange(1000)
    counts = np.zeros((1000, 3), dtype=np.int64)
    counts[clients, clients % 3] = clients
    counts[clients, (clients + 1) % 3] = 1
    lines = partition_table(counts, ["a", "b", "cc"]).split("\n")
    assert [line.split()[:2] for line in lines[1:21]] == [[str(client), str(client + 1)] for client in range(20)]
    assert lines[22].split() == ["total", str(999 * 1000 // 2 + 1000), *map(str, counts.sum(axis=0))]
    assert lines[25].split() == ["examples", "1", "250.8", "500.5", "750.2", "1000"]
    assert lines[26].split() == ["classes", "1", "2", "2", "2", "2"]  # client 0 has one


def test_the_class_mix_is_compared_with_that_of_all() -> None:
    counts = np.random.default_rng(0).integers(0, 5, (50, 6))
    counts[3] = 0
    found = measures(counts)["distance of the class mix"]
    everyone = counts.sum(axis=0) / counts.sum()
    for client, own in enumerate(counts):
        if own.sum():
            assert found[client] == pytest.approx(np.maximum(own / own.sum() - everyone, 0).sum())


DATA = {"source": "lit_fednas.data.Digits", "partitioner": "lit_fednas.data.IID", "num_clients": 3}


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
