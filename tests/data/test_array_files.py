"""Sources of arrays and tables in files."""

import os
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
import torch

from lit_fednas.data import (
    IID,
    ArrayFiles,
    ByColumn,
    Classification,
    FederatedDataModule,
    MultiLabel,
    NextToken,
    Regression,
)
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.rng import generator
from tests.data.files import load

TABLE = """size,rooms,kind,city,price
10,1,flat,Bonn,100.5
30,2,house,Köln,300.0
20,3,flat,Bonn,200.0
"""


class TestTables:
    @pytest.fixture
    def table(self, tmp_path: Path) -> str:
        (tmp_path / "train.csv").write_text(TABLE)
        (tmp_path / "test.csv").write_text("price,kind,rooms,size\n1,house,5,40\n")
        return str(tmp_path / "train.csv")

    def source(self, table: str, **settings: Any) -> ArrayFiles:
        defaults = {"target": "price", "client": "city", "categorical": ["kind"]}
        files = {"train": table, "test": table.replace("/train.", "/test.")}
        return ArrayFiles(files, **{**defaults, **settings})

    def test_columns_become_inputs_targets_and_clients(self, table: str) -> None:
        source = self.source(table)
        train = load(source)
        assert train.inputs.dtype == source.input_dtype == torch.float32
        assert train.inputs.tolist() == [[10, 1, 1, 0], [30, 2, 0, 1], [20, 3, 1, 0]]
        assert train.targets.tolist() == [[100.5], [300], [200]]
        assert train.columns["city"].tolist() == ["Bonn", "Köln", "Bonn"]
        assert (source.input_shape, source.num_classes, type(source.task)) == ((4,), 1, Regression)
        test = load(source, "test")  # the order of columns differs
        assert (test.inputs.tolist(), test.targets.tolist(), test.columns) == ([[40, 5, 0, 1]], [[1]], {})
        assert source.load("val") is source.normalization is None

    def test_standardized_by_the_training_split(self, table: str) -> None:
        data = FederatedDataModule(self.source(table, standardize=True), ByColumn("city"), server_val=0)
        data.setup("fit")
        ((inputs, _),) = data.clients.batches(0, 9, generator(0, "b"), shuffle=False)
        z = (3 / 2) ** 0.5
        assert inputs.tolist() == [pytest.approx([-z, -z, 1, 0]), pytest.approx([0, z, 1, 0], abs=1e-6)]

    @pytest.mark.parametrize(
        ("settings", "targets", "names"),
        [
            ({"target": "kind", "categorical": [], "inputs": ["size"]}, [0, 1, 0], ("flat", "house")),
            ({"target": ["size", "price"]}, [[10, 100.5], [30, 300], [20, 200]], ("0", "1")),
            ({"target": "size", "task": Regression(1)}, [[10], [30], [20]], ("0",)),
        ],
    )
    def test_tasks(self, table: str, settings: dict[str, Any], targets: list[Any], names: tuple[str, ...]) -> None:
        source = self.source(table, **settings)
        assert load(source).targets.tolist() == targets
        assert source.class_names == names

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("size,rooms,kind,price\n1,2,flat,3\n1,,flat,3\n", r"test\.csv has no value of 'rooms' in row 1"),
            ("size,rooms,kind,price\n1,2,tent,3\n", r"test\.csv has kind 'tent', which train lacks"),
            ("size,rooms,kind,price\n1,2,flat,3\n1,2,flat,3e\n", r"'price' of .*test\.csv holds .*, '3e' in row 1"),
        ],
    )
    def test_faults_of_another_split_are_named(self, table: str, text: str, message: str) -> None:
        (Path(table).parent / "test.csv").write_text(text)
        with pytest.raises(DataError, match=message):
            load(self.source(table))

    @pytest.mark.parametrize("header", ["", "Unnamed: 0"])
    def test_an_index_is_refused_unless_inputs_are_listed(self, table: str, header: str) -> None:
        """``to_csv`` writes the index without a name; ``read_csv`` then names it."""
        path = Path(table)
        pd.read_csv(path).to_csv(path, index_label=header)
        with pytest.raises(DataError, match=r"train\.csv has a column without a name .*write it with index=False"):
            _ = self.source(table).input_shape
        assert self.source(table, inputs=["size", "rooms", "kind"]).input_shape == (4,)

    def test_a_name_in_the_last_row_makes_all_classes_names(self, tmp_path: Path) -> None:
        """By default, pandas reads such a long file in chunks, and infers the types of each."""
        rows = "".join(f"0.12345,{row % 3}\n" for row in range(300_000))
        (tmp_path / "a.csv").write_text(f"x,target\n{rows}1,unknown\n")
        (tmp_path / "b.csv").write_text("x,target\n1,2\n1,0\n")
        source = ArrayFiles({"train": str(tmp_path / "a.csv"), "test": str(tmp_path / "b.csv")})
        assert source.class_names == ("0", "1", "2", "unknown")
        assert torch.bincount(load(source).targets).tolist() == [100_000] * 3 + [1]
        assert load(source, "test").targets.tolist() == [2, 0]

    def test_clients_and_categories_differ_if_their_texts_do(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("site,kind,target\n007,10,0\n7,2,1\n10,10,0\n")
        train = load(ArrayFiles({"train": str(tmp_path / "a.csv")}, client="site", categorical=["kind"]))
        assert train.columns["site"].tolist() == ["007", "7", "10"]
        assert train.inputs.tolist() == [[0, 1], [1, 0], [0, 1]]  # 2 is before 10


class TestArrays:
    def write(self, path: Path, **arrays: np.ndarray) -> str:
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return str(path)

    def test_images_stay_uint8(self, tmp_path: Path) -> None:
        images = np.arange(3 * 1 * 2 * 2, dtype=np.uint8).reshape(3, 1, 2, 2)
        targets, site = np.array([0, 2, 1], dtype=np.int32), np.array(["a", "b", "a"])
        path = self.write(tmp_path / "a.npz", inputs=images, targets=targets, site=site)
        source = ArrayFiles({"train": path}, client="site")
        train = load(source)
        assert (train.inputs.dtype, source.input_dtype, source.input_shape) == (torch.uint8, torch.float32, (1, 2, 2))
        assert (train.targets.tolist(), source.num_classes) == ([0, 2, 1], 3)
        assert train.columns["site"].tolist() == ["a", "b", "a"]
        assert source.load("test") is None
        scaled = ArrayFiles({"train": path}, standardize=True).normalization
        assert scaled is not None
        assert scaled.mean == pytest.approx([5.5 / 255])
        path = self.write(tmp_path / "b.npz", inputs=np.zeros((2, 3)), targets=np.array([[True, False], [True, True]]))
        labels = load(ArrayFiles({"train": path}, task=MultiLabel(2)))
        assert (labels.targets.tolist(), labels.inputs.dtype) == ([[1, 0], [1, 1]], torch.float32)

    def test_tokens_stay_whole_numbers(self, tmp_path: Path) -> None:
        np.save(tmp_path / "inputs.npy", np.array([[1, 2], [3, 0]], dtype=np.int64))
        np.save(tmp_path / "targets.npy", np.array([[2, 3], [1, 0]], dtype=np.int64))
        source = ArrayFiles({"train": str(tmp_path)}, task=NextToken(4, 0))
        train = load(source)
        assert (train.inputs.tolist(), source.input_dtype) == ([[1, 2], [3, 0]], torch.int64)
        assert train.targets.tolist() == [[2, 3], [1, 0]]
        with pytest.raises(ConfigError, match=r"standardize: torch\.int64 inputs"):
            load(ArrayFiles({"train": str(tmp_path)}, task=NextToken(4, 0), standardize=True))

    @pytest.mark.parametrize(
        ("name", "array", "message"),
        [
            ("inputs", np.zeros(3), r"inputs of type float64 and shape \(3,\); give numbers \[N, \.\.\.\]"),
            ("inputs", np.zeros((3, 0)), r"inputs of type float64 and shape \(3, 0\)"),
            ("inputs", np.zeros((3, 2), dtype=object), "Object arrays|Python objects"),
            ("inputs", np.zeros((2, 2)), "has 2 inputs, 3 targets, 3 site; give one of each per example"),
            ("targets", np.zeros((3, 1, 1)), r"targets of type float64 and shape \(3, 1, 1\); give numbers \[N\] or"),
            ("targets", np.zeros((3, 2), dtype=int), r"shape \(3, 2\); give one class per example, or a task like"),
            ("targets", np.array([20231105, 20231106, 0]), "would be 20,231,107 classes of 3 examples"),
            ("targets", np.array([0.0, np.nan, 1.0]), "NaN"),
            ("site", np.array([[1], [2], [3]]), r"site of type int64 and shape \(3, 1\); give numbers or text \[N\]"),
            ("site", np.array(["a", "b", ""]), "no value of 'site' in row 2"),
        ],
    )
    def test_invalid_arrays_are_refused(self, tmp_path: Path, name: str, array: np.ndarray, message: str) -> None:
        arrays = {"inputs": np.zeros((3, 2)), "targets": np.array([0, 1, 0]), "site": np.array(["a", "b", "c"])}
        path = self.write(tmp_path / "a.npz", **{**arrays, name: array})
        (tmp_path / "folder").mkdir()
        for key, value in {**arrays, name: array}.items():
            np.save(tmp_path / "folder" / f"{key}.npy", value)
        for file in (path, str(tmp_path / "folder")):
            with pytest.raises(DataError, match=message):
                FederatedDataModule(ArrayFiles({"train": file}, client="site"), IID(), 2).setup("fit")

    @pytest.mark.parametrize("compress", [np.savez, np.savez_compressed])
    def test_a_flipped_bit_and_a_truncation_are_noticed(self, tmp_path: Path, compress: Any) -> None:
        """Otherwise the arrays are equal, as after a change of dates in a zip file."""
        path = tmp_path / "a.npz"
        draws = np.random.default_rng(0)
        compress(path, inputs=draws.normal(size=(5, 4)), targets=np.arange(5) % 2)
        whole, content = load(ArrayFiles({"train": str(path)})), path.read_bytes()
        faults = []
        for index in draws.permutation(len(content))[:120]:
            damaged = content[:index] + (b"" if index % 2 else bytes([content[index] ^ 8]) + content[index + 1 :])
            path.write_bytes(damaged)
            try:
                examples = load(ArrayFiles({"train": str(path)}))
            except DataError as error:
                faults.append(str(error))
            else:
                assert torch.equal(examples.inputs, whole.inputs)
                assert torch.equal(examples.targets, whole.targets)
        assert len(faults) > 80
        assert all("a.npz" in fault and "\n" not in fault for fault in faults)

    def test_arrays_must_have_the_size_of_their_file(self, tmp_path: Path) -> None:
        np.save(tmp_path / "targets.npy", np.array([0, 1]))
        for shape in ((10**15, 4), (10**11, 4), (2, 3)):
            with (tmp_path / "inputs.npy").open("wb") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
                file.write(np.zeros((2, 4)).tobytes())
            with pytest.raises(DataError, match=r"inputs\.npy cannot be read \(.*(larger|greater|shorter)"):
                load(ArrayFiles({"train": str(tmp_path)}))

    def test_classes_may_be_floats_and_types_of_other_machines(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = self.write(tmp_path / "a.npz", inputs=np.ones((2, 1), dtype=">f2"), targets=np.array([1.0, 0.0]))
        assert load(ArrayFiles({"train": path}, task=Classification(2))).targets.tolist() == [1, 0]
        assert load(ArrayFiles({"train": path})).targets.tolist() == [[1], [0]]
        assert "a.npz are floats, which are taken for numbers to predict" in caplog.text
        path = self.write(
            tmp_path / "b.npz", inputs=np.ones((2, 1), dtype=">i4"), targets=np.array([1, 0], dtype=">i2")
        )
        assert load(ArrayFiles({"train": path})).inputs.tolist() == [[1], [1]]

    @pytest.mark.parametrize(
        ("files", "settings", "message"),
        [
            ({"train": "a.npz"}, {"client": "site"}, r"a\.npz has no 'site', only inputs, targets; add it"),
            ({"train": "b.npz"}, {}, r"b\.npz cannot be read"),
            ({"train": "a.npz", "val": "d.npz"}, {}, r"val has targets 0\.\.7"),
            ({"train": "a.npz", "val": "v.csv"}, {}, r"v\.csv and .*a\.npz are not of one kind; give tables or arrays"),
            ({"train": "a.npz", "dev": "a.npz"}, {}, r"data\.source\.files: "),
            ({"train": "a.npz", "test": "link.npz"}, {}, r"link\.npz is in both train and test"),
            ({"train": "a.npz", "test": "nowhere.npz"}, {}, r"nowhere\.npz is a broken link"),
            ({"train": "pipe.npz"}, {}, r"pipe\.npz cannot be read"),
            ({"train": "text.npz"}, {}, r"text\.npz has inputs of type \|S2 and shape \(\); give numbers"),
            ({"train": "n.npz"}, {"standardize": True}, r"train holds NaN or infinity; correct or remove these"),
        ],
    )
    def test_faults_are_named(
        self, tmp_path: Path, files: dict[str, str], settings: dict[str, Any], message: str
    ) -> None:
        self.write(tmp_path / "a.npz", inputs=np.zeros((2, 3)), targets=np.array([0, 1]))
        self.write(tmp_path / "d.npz", inputs=np.zeros((2, 3)), targets=np.array([0, 7]))
        self.write(tmp_path / "n.npz", inputs=np.full((2, 3), np.nan), targets=np.array([0, 1]))
        (tmp_path / "b.npz").write_bytes(b"no zip")
        with ZipFile(tmp_path / "text.npz", "w") as archive:
            archive.writestr("inputs.npy", "no")
            archive.writestr("targets.npy", "no")
        (tmp_path / "link.npz").symlink_to("a.npz")
        (tmp_path / "nowhere.npz").symlink_to("gone.npz")
        os.mkfifo(tmp_path / "pipe.npz")
        paths = {split: str(tmp_path / name) for split, name in files.items()}
        with pytest.raises((ConfigError, DataError), match=message):
            FederatedDataModule(ArrayFiles(paths, **settings), IID(), 2).setup("fit")
