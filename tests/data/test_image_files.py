"""Image files of many kinds: decoded, left out and counted, or refused by name."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lit_fednas.data import ImageFolder, ImageTable
from lit_fednas.data.sources.decoding import read_image
from lit_fednas.errors import ConfigError, DataError
from tests.data.files import images

#: An image that is different in each orientation.
COLOURS = np.array([[[255, 0, 0], [0, 0, 0]], [[0, 255, 0], [255, 255, 255]], [[0, 0, 255], [0, 0, 0]]], np.uint8)


def encoded(image: Image.Image, kind: str, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def picture(size: int = 24) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8))


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def with_chunk(name: bytes, data: bytes) -> bytes:
    png = encoded(picture(), "PNG")
    return png[:33] + chunk(name, data) + png[33:]


def decoded(path: Path, channels: int = 3) -> list[Any]:
    """Returns the pixels of a file, [H][W][C], or [H][W] for one channel."""
    pixels = read_image(path, None, channels)
    return (pixels[0] if channels == 1 else np.moveaxis(pixels, 0, 2)).tolist()


class TestDecoding:
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_images_are_upright(self, tmp_path: Path, kind: str, orientation: int) -> None:
        """The functions follow the EXIF standard: the side of the scene at the stored first row and column."""
        stored = {  # the file's pixels, from those of the scene
            1: lambda scene: scene,
            2: lambda scene: scene[:, ::-1],
            3: lambda scene: scene[::-1, ::-1],
            4: lambda scene: scene[::-1],
            5: lambda scene: scene.swapaxes(0, 1),
            6: lambda scene: scene.swapaxes(0, 1)[::-1],
            7: lambda scene: scene.swapaxes(0, 1)[::-1, ::-1],
            8: lambda scene: scene.swapaxes(0, 1)[:, ::-1],
        }[orientation](COLOURS.repeat(16, 0).repeat(16, 1))
        exif = Image.Exif()
        exif[0x0112] = orientation
        lossless = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}.get(kind, {})
        image = Image.fromarray(np.ascontiguousarray(stored))
        (tmp_path / "a").write_bytes(encoded(image, kind, exif=exif, **lossless))
        pixels = read_image(tmp_path / "a", None, 3)
        assert pixels.shape == (3, 48, 32)
        centres = np.moveaxis(pixels[:, 8::16, 8::16], 0, 2).astype(int)
        assert np.abs(centres - COLOURS).max() <= 4
        reduced = read_image(tmp_path / "a", 4, 3).astype(int)  # the centre of 32x32 pixels, scaled
        assert reduced[:, 0, 0] == pytest.approx([255, 0, 0], abs=70)
        assert reduced[:, -1, 0] == pytest.approx([0, 0, 255], abs=70)

    @pytest.mark.parametrize(
        ("mode", "kind", "values", "expected"),
        [
            ("1", "PNG", [0, 255], [0, 255]),
            ("L", "PNG", [7, 200], [7, 200]),
            ("LA", "PNG", [(7, 255), (0, 0)], [7, 255]),
            ("LA", "PNG", [(100, 51), (0, 255)], [224, 0]),  # 0.2 * 100 + 0.8 * 255
            ("RGBA", "PNG", [(9, 9, 9, 255), (9, 9, 9, 0)], [9, 255]),
            ("I;16", "PNG", [0x1234, 65_535], [0x12, 255]),
            ("I;16", "TIFF", [0x1234, 65_535], [0x12, 255]),
            ("I;16B", "TIFF", [0x1234, 65_535], [0x12, 255]),
            ("CMYK", "JPEG", [(0, 0, 0, 0), (0, 0, 0, 255)], [255, 0]),
            ("CMYK", "TIFF", [(0, 0, 0, 0), (0, 0, 0, 255)], [255, 0]),
        ],
    )
    def test_modes_are_decoded_as_a_viewer_shows_them(
        self, tmp_path: Path, mode: str, kind: str, values: list[Any], expected: list[int]
    ) -> None:
        if mode.startswith("I;16"):
            row = struct.pack(">2H" if mode.endswith("B") else "<2H", *values)
            image = Image.frombytes(mode, (2, 1), row)
        else:
            image = Image.new(mode, (2, 1))
            image.putdata(values)
        image = image.resize((64, 32), Image.Resampling.NEAREST)
        (tmp_path / "a").write_bytes(encoded(image, kind))
        for channels in (1, 3):
            pixels = read_image(tmp_path / "a", None, channels)[:, 16, (16, 48)]
            assert pixels.tolist() == [expected] * channels

    def test_palettes_and_their_transparent_entry(self, tmp_path: Path) -> None:
        image = Image.new("P", (2, 1))
        image.putpalette([10, 20, 30, 40, 50, 60])
        image.putpixel((1, 0), 1)
        for kind in ("PNG", "GIF", "BMP"):
            image.save(tmp_path / "a", kind)
            assert decoded(tmp_path / "a") == [[[10, 20, 30], [40, 50, 60]]]
        image.save(tmp_path / "a", "PNG", transparency=1)
        assert decoded(tmp_path / "a") == [[[10, 20, 30], [255, 255, 255]]]

    def test_a_grey_map_of_few_levels_is_scaled(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"P5 3 1 1000\n" + struct.pack(">3H", 0, 500, 1000))
        assert decoded(tmp_path / "a", 1) == [[0, 128, 255]]  # 16-bit values are 0, 32768 and 65535


DAMAGED: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"no image",
    "heic named png": lambda: b"\0\0\0\x18ftypheic" + bytes(99),
    **{f"cut {kind}": (lambda kind=kind: encoded(picture(), kind)[:-200]) for kind in ("PNG", "JPEG", "GIF", "BMP")},
    **{f"cut {kind}": (lambda kind=kind: encoded(picture(), kind)[:-200]) for kind in ("TIFF", "WEBP", "PPM")},
    "cut plain ppm": lambda: b"P3 2 2 255\n1 2 3 4 5 6 7 8 9 10 11",
    "head alone": lambda: encoded(picture(), "PNG")[:12],
    "no pixels": lambda: b"P6 0 7 255\n",
    "one pixel": lambda: encoded(picture(1), "PNG"),
    "negative": lambda: b"P6 -3 7 255\n" + bytes(99),
    "letters": lambda: b"P3 2 1 255\n1 2 x 4 5 6",
    "bomb": lambda: b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", 60_000, 60_000, 8, 0, 0, 0, 0)),
    "bomb of text": lambda: with_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(9_000_000))),
    "bomb of colours": lambda: with_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(9_000_000))),
    "32 bits": lambda: encoded(Image.new("F", (8, 8)), "TIFF"),
}


class TestFolder:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return images(tmp_path, "train/cat/1.png", "train/cat/2.png", "train/dog/1.png", size=(24, 24))

    def test_images_are_recognised_by_content_and_others_counted(self, root: Path) -> None:
        for name, kind in (("a.JPG", "JPEG"), ("b", "PNG"), ("c.jpg", "PNG"), ("d.dat", "GIF"), ("e.jp2", "JPEG2000")):
            (root / "train" / "cat" / name).write_bytes(encoded(picture(), kind))
        for name in ("f.tga", "g.pcx"):  # these need the right suffix
            picture().save(root / "train" / "cat" / name)
        for name in ("cat/x.heic", "dog/y.HEIC", "cat/notes.txt", "dog/.DS_Store", "dog/README", ".hidden", "list.csv"):
            (root / "train" / name).write_bytes(b"no image")
        (root / "train" / "cat" / ".1.png").write_bytes(encoded(picture(), "PNG"))
        (root / "train" / "cat" / "table.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(9))  # Pillow has a stub for it
        (root / "valid").mkdir()
        source = ImageFolder(root, mean=[0.0] * 3, std=[1.0] * 3)
        dataset: Any = source.dataset("train")
        names = ["1.png", "2.png", "a.JPG", "b", "c.jpg", "d.dat", "e.jp2", "f.tga", "g.pcx"]
        assert dataset.names == [f"train/cat/{name}" for name in names] + ["train/dog/1.png"]
        assert [dataset[row][0].shape for row in range(10)] == [(3, 24, 24)] * 10
        assert source.left_out["train"] == {
            ".heic": 2,
            ".txt": 1,
            ".h5": 1,
            "hidden": 2,
            "without a suffix": 1,
            "hidden beside the classes": 1,
            ".csv beside the classes": 1,
            "folder valid": 1,
        }

    @pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
    def test_damaged_images_are_refused_by_name(self, root: Path, content: Callable[[], bytes]) -> None:
        (root / "train" / "dog" / "0.png").write_bytes(content())
        with pytest.raises(
            DataError,
            match=r"data\.source: \S*dog/0\.png (cannot be read \(|has 1x1 pixels|has signed numbers, or more than 16)",
        ):
            ImageFolder(root, image_size=8).load("train")

    @pytest.mark.parametrize("name", ["val", "train/emu", "metadata.csv"])
    def test_broken_links_are_refused(self, root: Path, name: str) -> None:
        (root / name).symlink_to("gone")
        with pytest.raises(DataError, match=f"{name} is (not a|a broken link|missing)"):
            ImageFolder(root).prepare()

    def test_splits_do_not_share_a_folder(self, root: Path) -> None:
        (root / "test").symlink_to(root / "train")
        with pytest.raises(ConfigError, match="test is in both train and test"):
            ImageFolder(root).load("train")


class TestTables:
    """Faults of image tables and ``metadata.csv``; test_sources and test_natural_sources test their content."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return images(tmp_path, "train/x/a.png", "train/x/b.png", "train/y/c.png", "train/y/d.png")

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('train/x/b.png,0,"ann', r"cannot be read|line break"),
            ("train/x/b.png,0,ann,extra", r"cannot be read"),
            ("train/x/b.png,0", r"no value of 'client'|fewer|cells"),
            ("train/x/b.png,0,", r"no value of 'client'"),
            (",0,ann", r"no value of 'file'"),
            ("train/x/gone.png,0,ann", r"gone\.png is missing|no row for train/x/b\.png"),
            ("train/x/../x/a.png,0,ann", r"lists train/x/a\.png twice"),
            ("train/x,0,ann", r"train/x is not a file|no row for train/x/b\.png"),
            ("train/x/\0b.png,0,ann", r"cannot be read|line break|missing"),
        ],
    )
    @pytest.mark.parametrize(("kind", "last"), [("table", "bob"), ("metadata", '"bob"')])
    def test_invalid_lines_are_refused(self, root: Path, line: str, message: str, last: str, kind: str) -> None:
        end = f"train/y/c.png,1,bob\ntrain/y/d.png,1,{last}\n"
        (root / "metadata.csv").write_text(f"file,label,client\ntrain/x/a.png,0,ann\n{line}\n{end}")
        with pytest.raises(DataError, match=message):
            (ImageFolder(root) if kind == "metadata" else ImageTable(root / "metadata.csv")).load("train")

    def test_labels_with_too_many_classes_are_refused(self, root: Path) -> None:
        (root / "metadata.csv").write_text("file,label,client\ntrain/x/a.png,100,ann\n")
        with pytest.raises(DataError, match=r"source\.label: 'label' of .*metadata\.csv would be 101 classes of 1 ex"):
            ImageTable(root / "metadata.csv").load("train")

    def test_a_quote_that_is_open_in_the_header_is_refused(self, root: Path) -> None:
        (root / "metadata.csv").write_text('file,label,"client\ntrain/x/a.png,0,ann\n"\ntrain/x/b.png,0,bob\n')
        with pytest.raises(DataError, match=r"^data\.source\.root: .* line break in [^\n]* close the quotes[^\n]*$"):
            ImageFolder(root).load("train")

    def test_labels_of_many_digits_are_names(self, root: Path) -> None:
        rows = "".join(f"train/{'x' if n < 'c' else 'y'}/{n}.png,{'1' * 5000 if n < 'c' else 2},ann\n" for n in "abcd")
        (root / "table.csv").write_text(f"file,label,client\n{rows}")
        assert ImageTable(root / "table.csv").class_names == ("1" * 5000, "2")
