"""Writers of small files for the sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image
from scipy.io import wavfile
from typing_extensions import override

from lit_fednas.data import CIFAR10, DataSource, Examples


def load(source: DataSource, split: str = "train") -> Examples:
    """Returns a split that exists."""
    examples = source.load(split)  # type: ignore[arg-type]
    assert examples is not None
    return examples


def write_image(path: Path, value: int, size: tuple[int, int] = (8, 8)) -> None:
    """Writes an image of one colour; green has twice the value of red."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((size[1], size[0], 3), value, dtype=np.uint8)
    pixels[..., 1] = 2 * value
    Image.fromarray(pixels).save(path)


def images(folder: Path, *names: str, size: tuple[int, int] = (8, 8)) -> Path:
    """Writes images of the values 0, 10, 20, ...; returns their folder."""
    for number, name in enumerate(names):
        write_image(folder / name, 10 * number, size)
    return folder


def write_leaf(path: Path, **users: tuple[list[Any], list[Any]]) -> None:
    """Writes a file of LEAF, with x and y of each user."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    counts = [len(y) for _, y in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": data}))


def leaf(folder: Path, **users: tuple[list[Any], list[Any]]) -> Path:
    """Writes the same users in both splits; returns the folder."""
    for split in ("train", "test"):
        write_leaf(folder / split / "all.json", **users)
    return folder


#: Images of CelebA: name, identity, Smiling, Young, Male, Mouth_Slightly_Open.
FACES = (
    ("000001.jpg", 30, 1, -1, 1, -1),
    ("000002.jpg", 4, -1, 1, -1, -1),
    ("000003.jpg", 30, 1, 1, 1, 1),
    ("000004.jpg", 4, -1, 1, -1, 1),
    ("000005.jpg", 30, -1, 1, 1, -1),
    ("000006.jpg", 111, 1, 1, -1, -1),
)


def celeba(folder: Path) -> Path:
    """Writes the faces and their lists, which differ in their order; returns the parent folder."""
    root = folder / "celeba"
    images(root / "img_align_celeba", *(face[0] for face in FACES), size=(8, 10))
    (root / "identity_CelebA.txt").write_text("".join(f"{f[0]} {f[1]}\n" for f in reversed(FACES)))
    attributes = "".join(f"{f[0]} {f[2]:2d} {f[3]:2d} {f[4]:2d} {f[5]:2d}\n" for f in FACES[3:] + FACES[:3])
    header = f"{len(FACES)}\nSmiling Young Male Mouth_Slightly_Open \n"
    (root / "list_attr_celeba.txt").write_text(header + attributes)
    return folder


#: Speakers by split; the first two are in train.
TRAIN, OTHER, VAL, TEST = "004ae714", "00f0204f", "00000007", "00000018"


def tone(hertz: float, seconds: float = 1.0, rate: int = 16_000) -> np.ndarray:
    return (20_000 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.int16)


def write_wave(path: Path, wave: np.ndarray, rate: int = 16_000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, wave)


def recordings(folder: Path) -> Path:
    """Writes three words in a folder each; returns the parent folder."""
    for word, speakers in (("yes", (TRAIN, VAL, TEST)), ("no", (TRAIN, OTHER)), ("bed", (OTHER, TEST))):
        for speaker in speakers:
            write_wave(folder / word / f"{speaker}_nohash_0.wav", tone(len(word) * 300, 0.7))
    return folder


def roles(folder: Path) -> Path:
    """Writes Shakespeare's roles in TensorFlow Federated's format; returns the folder."""
    for split, snippets in (("train", {"PLAY_B": [b"dh~d", b"l"], "PLAY_A": [b"\r"]}), ("test", {"PLAY_B": [b""]})):
        with h5py.File(folder / f"shakespeare_{split}.h5", "w") as file:
            for role, texts in snippets.items():
                file[f"examples/{role}/snippets"] = np.array(texts, dtype="S9")
    return folder


class SmallCIFAR10(CIFAR10):
    """CIFAR-10 with six images, without a download."""

    data = np.arange(6 * 32 * 32 * 3).astype(np.uint8).reshape(6, 32, 32, 3)
    targets = (0, 1, 2, 3, 4, 9)

    @override
    def _open(self, train: bool, download: bool) -> Any:
        return self
