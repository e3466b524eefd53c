"""Sources with natural clients, from small files to the clients' batches."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_fednas.data import (
    ArraySource,
    ByColumn,
    CelebA,
    DataSource,
    Examples,
    FederatedDataModule,
    ImageTable,
    Leaf,
)
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.rng import generator
from tests.data.files import celeba, images, load, write_leaf


def values(examples: Examples) -> list[int]:
    return examples.inputs.flatten(1)[:, 0].tolist()


def module(source: DataSource, least: int = 1, **settings: Any) -> FederatedDataModule:
    data = FederatedDataModule(source, ByColumn("client", least), **{"server_val": 0, **settings})
    data.prepare_data()
    data.setup("fit")
    return data


def client_targets(data: FederatedDataModule) -> list[list[int]]:
    """Returns the targets of each client, read in batches."""
    clients = data.clients
    epochs = [clients.batches(client, 2, generator(0, "b"), shuffle=False) for client in range(clients.num_clients)]
    return [[int(target) for _, targets in epoch for target in targets] for epoch in epochs]


TABLE = """file,label,client,split
img/1.png,dog,bob,train
img/0.png,cat,ann,train
img/2.png,ant,bob,train
img/3.png,dog,ann,train
img/4.png,cat,ann,val
img/5.png,cow,eve,test
"""


class TestImageTable:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        images(tmp_path, *(f"img/{number}.png" for number in range(6)))
        (tmp_path / "list.csv").write_text(TABLE)
        return tmp_path / "list.csv"

    def test_rows_become_examples(self, table: Path) -> None:
        source = ImageTable(table)
        assert (source.num_classes, source.class_names) == (4, ("ant", "cat", "cow", "dog"))
        assert source.input_shape == (3, 8, 8)
        train = load(source)
        assert values(train) == [10, 0, 20, 30]
        assert train.targets.tolist() == [3, 1, 0, 3]
        assert train.columns["client"].tolist() == ["bob", "ann", "bob", "ann"]
        assert (values(load(source, "val")), load(source, "test").targets.tolist()) == ([40], [2])

    @pytest.mark.parametrize(
        ("labels", "names", "targets"),
        [(["10", "2", "0"], 11, [10, 2, 0]), (["0", "cat", "0"], 2, [0, 1, 0]), (["b", "2", "10"], 3, [2, 1, 0])],
    )
    def test_labels_are_text_unless_all_are_whole_numbers(
        self, table: Path, labels: list[str], names: int, targets: list[int]
    ) -> None:
        rows = "".join(f"img/{k}.png,{label},ann\n" for k, label in enumerate(labels))
        table.write_text(f"file,label,client\n{rows}")
        source = ImageTable(table)
        assert source.num_classes == len(source.class_names) == names
        assert load(source).targets.tolist() == targets


def one_user(x: str, y: str, user: str = "a") -> str:
    """Returns a file of one user, given the content of the lists x and y as JSON."""
    return f'{{"users": ["{user}"], "user_data": {{"{user}": {{"x": [{x}], "y": [{y}]}}}}}}'


def flat(*numbers: float) -> list[list[float]]:
    """Returns ascending lists of four numbers, which begin with ``numbers``."""
    return [[number, number + 0.1, number + 0.2, number + 0.3] for number in numbers]


class TestLeaf:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        write_leaf(tmp_path / "train" / "b.json", u3=(flat(3), [2]))
        write_leaf(tmp_path / "train" / "a.json", u2=(flat(2, 5), [1, 0]), u1=(flat(1), [2.0]))
        write_leaf(tmp_path / "test" / "a.json", u1=(flat(7), [4]), u3=(flat(8, 9), [0, 1]))
        return tmp_path

    def test_files_are_read_in_the_order_of_their_names(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        listdir = os.listdir
        monkeypatch.setattr(os, "listdir", lambda path: sorted(listdir(path), reverse=True))
        source = Leaf(root, (1, 2, 2), 5)
        assert (source.num_classes, source.input_shape, len(source.class_names)) == (5, (1, 2, 2), 5)
        train = load(source)
        assert train.inputs.dtype == torch.float32
        assert train.inputs[1, 0].flatten().tolist() == pytest.approx([5, 5.1, 5.2, 5.3])
        assert values(train) == [2, 5, 1, 3]
        assert train.targets.tolist() == [1, 0, 2, 2]
        assert train.columns["client"].tolist() == ["u2", "u2", "u1", "u3"]
        assert values(load(source, "test")) == [7, 8, 9]
        assert source.load("val") is None

    def test_both_splits_are_dealt_by_the_setting(self, root: Path) -> None:
        source = Leaf(root, (4,), deal="all")
        assert values(load(source)) == [2, 5, 1, 3, 7, 8, 9]
        assert source.load("test") is None
        assert client_targets(module(source)) == [[2, 4], [1, 0], [2, 0, 1]]
        assert set(load(Leaf(root, (4,), least=2)).columns["client"]) == {"u2"}  # small users are left out
        assert len(load(Leaf(root, (4,), least=2), "test")) == 3

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "cannot be read"),
            ("[" * 200_000, "cannot be read"),
            (b"\xff\xfe{}", "cannot be read"),
            ("[]", r"content is \[\]"),
            ('{"users": []}', "content lacks user_data"),
            ('{"users": {"a": 1}, "user_data": {}}', "content.users is"),
            ('{"users": ["a"], "user_data": [{"x": [[1]], "y": [1]}]}', "content.user_data is"),
            (one_user("[1]", "1", user="\\u0000"), r"lacks a name, .* for user '\\x00'"),
            (one_user("[1]", "1").replace('["a"]', '["a", "a"]'), "user 'a' is not once in 'users' and once in"),
            (one_user("[1]", "1").replace('["a"]', '["a", "b"]'), "user 'b' is not once in 'users' and once in"),
            (one_user("[1]", "1").replace('"y"', '"x": [], "y"'), r"a key of \['x', 'y'\] is duplicated"),
            (one_user("[1]", "1").replace("]}}}", ']}}, "num_samples": [2]}'), "num_samples"),
            ('{"users": ["a"], "user_data": {"a": [[[1]], [0]]}}', "content.user_data.a is"),
            *((one_user("[1]", y), "one length, for user 'a'") for y in ("", "0, 1")),
            *((one_user("[1]", y), "user 'a' the class") for y in ("0.5", "-1", "1e999", "true", "null", "2147483648")),
            *((one_user(x, "0"), "user 'a' an x .*use ShakespeareRoles") for x in ('"1.jpg"', "[true]", "[{}]")),
            (one_user("[1], [1, 2]", "0, 1"), "user 'a' .*inhomogeneous"),
            *((one_user(x, "0"), r"an x of \d numbers; .* fits, not \[1\]") for x in ("[]", "[1, 2]", "[[[]]]")),
            *((one_user(x, y), "NaN is not a number") for x, y in (("[NaN]", "0"), ("[1]", "NaN"))),
            (one_user("", "").replace('"x": []', '"x": [], "z": []'), "no examples in its JSON files"),
        ],
    )
    def test_invalid_files_are_refused(self, tmp_path: Path, content: str | bytes, message: str) -> None:
        (tmp_path / "train").mkdir()
        (tmp_path / "train" / "a.json").write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(DataError, match=rf"^data\.source\.root: \S*train[^\n]*{message}[^\n]*$"):
            Leaf(tmp_path, (1,), 3).load("train")

    def test_nested_lists_must_have_the_inputs_shape(self, tmp_path: Path) -> None:
        path = tmp_path / "train" / "a.json"
        path.parent.mkdir()
        path.write_text("\ufeff" + one_user("[[1, 2], [3, 4], [5, 6]]", "0"))
        assert load(Leaf(tmp_path, (1, 3, 2), 1)).inputs.tolist() == [[[[1, 2], [3, 4], [5, 6]]]]
        path.write_text(one_user("[[1, 2, 3], [4, 5, 6]]", "0"))
        with pytest.raises(DataError, match="an x of 2x3 numbers"):
            Leaf(tmp_path, (1, 3, 2), 1).load("train")

    def test_omissions_are_counted(self, root: Path) -> None:
        write_leaf(root / "train" / "c.JSON", u4=(flat(4), [0]), u5=([], []))
        for name in (".a.json", "notes.txt", "copy"):
            (root / "train" / name).write_text("{")
        source = Leaf(root, (4,), least=2)
        assert len(load(source)) == 2
        reasons = {"of users with fewer than 2": 3, "users without examples": 1}
        assert source.left_out["train"] == {**reasons, "hidden": 1, ".txt": 1, "without a suffix": 1}
        with pytest.raises(DataError, match=r"least: 3 leaves no user"):
            Leaf(root, (4,), least=3).load("train")

    def test_a_user_in_two_files_of_a_split_is_refused(self, root: Path) -> None:
        write_leaf(root / "train" / "copy.json", u1=(flat(1), [2]))
        with pytest.raises(DataError, match=r"copy\.json .*user 'u1' is in a\.json, too"):
            Leaf(root, (4,)).load("train")

    def test_settings_that_do_not_fit_the_files(self, root: Path) -> None:
        with pytest.raises(DataError, match=r"train has targets 0\.\.2; give targets from 0 to 1"):
            module(Leaf(root, (4,), num_classes=2))
        with pytest.raises(DataError, match=r"user 'u2' an x of 4 numbers; .*not \[1, 28, 28\]"):
            Leaf(root).load("train")
        with pytest.raises(ConfigError, match="deal"):
            Leaf(root, deal="test")  # type: ignore[arg-type]


class TestCelebA:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return celeba(tmp_path)

    def test_attributes_become_classes_and_people_clients(self, root: Path) -> None:
        source = CelebA(root, least=1, image_size=8)
        assert source.class_names[-2:] == ("Smiling+Male", "Smiling+Male+Mouth_Slightly_Open")  # classes 6 and 7
        train = load(source)
        assert values(train) == pytest.approx([0, 10, 20, 30, 40, 50], abs=2)
        assert train.targets.tolist() == [0b110, 0b000, 0b111, 0b001, 0b010, 0b100]
        assert train.columns["client"].tolist() == [30, 4, 30, 4, 30, 111]
        assert source.load("val") is source.load("test") is None

    def test_people_with_few_images_are_left_out(self, root: Path) -> None:
        source = CelebA(root, least=3, image_size=8)
        assert set(load(source).columns["client"].tolist()) == {30}
        assert source.left_out["train"] == {"of people with fewer than 3": 3}
        with pytest.raises(DataError, match="no training examples"):
            module(CelebA(root, least=4, image_size=8))

    def test_faults_of_lists_are_named(self, root: Path) -> None:
        path = root / "celeba" / "list_attr_celeba.txt"
        *lines, last = path.read_text().splitlines()
        for line in ("000009.jpg x", "000009.jpg 1", f"{last} 1", lines[-1]):
            path.write_text("\n".join([*lines, line]))
            with pytest.raises(DataError, match=r"list_attr_celeba\.txt cannot be read"):
                CelebA(root, least=1, image_size=8).load("train")

    def test_an_image_that_one_list_lacks_is_named(self, root: Path) -> None:
        path = root / "celeba" / "identity_CelebA.txt"
        path.write_text(path.read_text().partition("\n")[2])
        with pytest.raises(DataError, match=r"one list of .*celeba lacks 00000\d\.jpg"):
            CelebA(root, least=1, image_size=8).load("train")

    def test_missing_files_are_named(self, root: Path) -> None:
        (root / "celeba" / "img_align_celeba" / "000004.jpg").unlink()
        with pytest.raises(DataError, match=r"000004\.jpg is missing"):
            CelebA(root, least=1).load("train")
        (root / "celeba" / "identity_CelebA.txt").unlink()
        with pytest.raises(DataError, match=r"celeba/identity_CelebA\.txt is missing"):
            CelebA(root, least=1).load("train")


def natural(sizes: Sequence[int]) -> ArraySource:
    """Returns a source with clients 0, 1, ... of the given sizes."""
    clients = np.repeat(np.arange(len(sizes)), sizes)
    targets = torch.arange(len(clients)) % 2
    return ArraySource(Examples(torch.arange(len(clients)).float()[:, None], targets, {"client": clients}))


def test_splits_of_small_clients(caplog: pytest.LogCaptureFixture) -> None:
    """A client with one or two examples only trains on them; with three, it has an example in each split."""
    with caplog.at_level(logging.INFO, logger="lit_fednas"):
        data = module(natural([1, 2, 3, 4, 5, 8, 10, 21]), client_val=0.2, client_test=0.2)
    sizes = [tuple(data.clients.size(c, s) for s in ("train", "val", "test")) for c in range(8)]
    assert sizes == [(1, 0, 0), (2, 0, 0), (1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 2, 2), (6, 2, 2), (13, 4, 4)]
    assert [record.message for record in caplog.records] == [
        f"client_{split}: 0.2 leaves 2 of 8 clients without an example in {split}" for split in ("val", "test")
    ]
    with pytest.raises(DataError, match=r"no training example to client 1, which has 2; .*ByColumn's least"):
        module(natural([9, 2, 1]), client_val=0.4, client_test=0.4)
    assert module(natural([9, 2, 1]), least=3, client_val=0.4, client_test=0.4).clients.num_clients == 1


def test_values_with_few_examples_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="lit_fednas")
    column = np.random.default_rng(0).permutation(np.repeat(np.arange(5), (4, 1, 5, 2, 4)))

    def rows(min_size: int, num_clients: int | None = None, merge: bool = False) -> list[list[int]]:
        partitioner = ByColumn("client", min_size, merge)
        partition = partitioner.partition(np.zeros(16, dtype=int), num_clients, 0, {"client": column})
        return [part.tolist() for part in partition]

    for min_size, large in ((1, [0, 1, 2, 3, 4]), (2, [0, 2, 3, 4]), (4, [0, 2, 4]), (5, [2])):
        expected = [np.flatnonzero(value == column).tolist() for value in large]
        assert rows(min_size) == rows(min_size, len(large)) == expected
        assert bool(caplog.records) == (min_size > 1)
    assert "3 examples of clients with fewer than 4 are left out" in caplog.text
    assert sorted(map(len, rows(4, 2, merge=True))) in ([4, 9], [5, 8])  # the other values are merged
    # the server holds out half of the data; a client that keeps 3 of 6 examples is left out
    data = module(natural([6, 6, 40]), least=4, server_val=0.5)
    assert min(data.clients.sizes) >= 4
    assert len(data.targets) == 26
