"""Recordings, from WAV files to features and clients."""

import io
import os
import struct
import sys
from math import cos, log10, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from lit_fednas.data import SpeechFeatures, SpeechFolder
from lit_fednas.data.sources import speech
from lit_fednas.data.sources.speech import mel_filters, official_split, read_wave
from lit_fednas.errors import ConfigError, DataError
from tests.data.files import OTHER, TEST, TRAIN, VAL, load, recordings, tone, write_wave


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return recordings(tmp_path)


class TestFeatures:
    def test_features_of_a_tone_equal_the_formulas(self) -> None:
        """The reference uses sums: Fourier transform, HTK's mel triangles, logarithm, cosine transform."""
        features = SpeechFeatures(rate=800, window=0.04, stride=0.02, mels=5, coefficients=4, seconds=0.1)
        size, wave = 32, np.sin(2 * pi * 90 * np.arange(80) / 800) + 0.3
        frame = wave[32:64]  # the frame from sample 32: frames of 32 samples begin at -16, 0, 16, 32
        window = [0.5 - 0.5 * cos(2 * pi * k / size) for k in range(size)]
        power = [
            abs(sum(window[n] * frame[n] * np.exp(-2j * pi * k * n / size) for n in range(size))) ** 2
            for k in range(size // 2 + 1)
        ]

        def mel(hertz: float) -> float:
            return 2595 * log10(1 + hertz / 700)

        edges = [700 * (10 ** (mel(400) * k / 6 / 2595) - 1) for k in range(7)]
        logs = []
        for low, centre, high in zip(edges, edges[1:], edges[2:], strict=False):
            weights = [
                max(0, min((hertz - low) / (centre - low), (high - hertz) / (high - centre)))
                for hertz in (25 * k for k in range(size // 2 + 1))
            ]
            logs.append(np.log(sum(w * p for w, p in zip(weights, power, strict=True)) + 1e-6))
        expected = [
            sqrt((1 if k == 0 else 2) / 5) * sum(x * cos(pi * k * (n + 0.5) / 5) for n, x in enumerate(logs))
            for k in range(4)
        ]
        computed = features(wave[None].astype(np.float32))
        assert computed.shape == (1, *features.shape) == (1, 1, 4, 6)
        assert computed[0, 0, :, 3] == pytest.approx(expected, rel=1e-4)
        log_mel = SpeechFeatures("log_mel", 800, mels=5, seconds=0.1)(wave[None].astype(np.float32))
        assert log_mel[0, 0, :, 3] == pytest.approx(logs, rel=1e-4)

    def test_the_papers_size_and_too_many_mels(self) -> None:
        assert SpeechFeatures()(np.zeros((2, 8000), dtype=np.float32)).shape == (2, 1, 40, 51)
        with pytest.raises(ConfigError, match=r"features\.mels: 128 is too many for frames of 320 samples"):
            mel_filters(128, 320, 8000)

    def test_samples_are_the_mean_of_channels_from_minus_one_to_one(self, tmp_path: Path) -> None:
        wave = np.sin(2 * pi * 200 * np.arange(1600) / 16_000) / 2
        stereo = np.stack([wave * 1.5, wave * 0.5], axis=1)
        write_wave(tmp_path / "a.wav", (stereo * 2.0**15).astype(np.int16))
        assert read_wave(tmp_path / "a.wav", 16_000) == pytest.approx(wave, abs=0.01)
        halved = read_wave(tmp_path / "a.wav", 8000)
        assert halved[100:700] == pytest.approx(wave[::2][100:700], abs=0.01)


MONO = struct.pack("<HHIIHH", 1, 1, 8000, 16_000, 2, 16)
FLOATS = struct.pack("<HHIIHH", 3, 1, 8000, 32_000, 4, 32)


def riff(form: bytes, samples: bytes, count: int | None = None) -> bytes:
    """Returns a WAV file; the header may declare another ``count`` of bytes than the samples have."""
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data"
    chunks += struct.pack("<I", len(samples) if count is None else count) + samples
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


def truncated(kind: str) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.sin(np.arange(8000) / 20) / 2, 8000, format=kind)
    return buffer.getvalue()[:-999]


class TestDamagedFiles:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "cannot be read"),
            (b"no sound", "cannot be read"),
            *(
                (truncated(kind), "cannot be read")
                for kind in ("WAV", "FLAC", "OGG", "AIFF", "AU", "CAF", "W64", "RF64", "MP3")
            ),
            (riff(MONO, bytes(100), 200), "fewer samples than its header declares"),
            (riff(MONO, b""), "no samples"),
            (riff(struct.pack("<HHIIHH", 1, 0, 8000, 16_000, 2, 16), bytes(100)), "cannot be read"),
            (riff(struct.pack("<HHIIHH", 1, 1, 999, 1998, 2, 16), bytes(100)), "declares 999 samples per second"),
            (riff(struct.pack("<HHIIHH", 1, 1, 2**31 - 1, 16_000, 2, 16), bytes(100)), "cannot be read"),
            (riff(FLOATS, struct.pack("<3f", 0.5, float("nan"), 0)), "NaN or infinity"),
        ],
    )
    def test_damaged_files_are_refused_by_name(self, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "a.wav").write_bytes(content)
        with pytest.raises(DataError, match=rf"^data\.source\.root: \S*a\.wav .*{message}[^\n]*$"):
            read_wave(tmp_path / "a.wav", 8000)

    def test_headers_with_enormous_lengths_reserve_no_memory(self, tmp_path: Path) -> None:
        """FLAC's header has 36 bits for the number of samples."""
        soundfile.write(tmp_path / "a.flac", np.zeros(8000), 8000)
        content = bytearray((tmp_path / "a.flac").read_bytes())
        content[21] |= 0x0F
        (tmp_path / "a.flac").write_bytes(content)
        with pytest.raises(DataError, match=r"a\.flac cannot be read \(its header declares 64,\d+,\d+,\d+ samples"):
            read_wave(tmp_path / "a.flac", 8000)

    def test_without_soundfile_the_error_names_the_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "soundfile", None)
        with pytest.raises(ConfigError, match=r"pip install 'lit-fednas\[speech\]'"):
            read_wave(tmp_path / "a.wav", 8000)


class TestSpeechFolder:
    def test_words_speakers_and_splits(self, root: Path) -> None:
        source = SpeechFolder(root)
        assert (source.class_names, source.input_shape, source.num_classes) == (("bed", "no", "yes"), (1, 40, 51), 3)
        train = load(source)
        assert train.targets.tolist() == [0, 1, 1, 2]
        assert train.columns["speaker"].tolist() == [OTHER, TRAIN, OTHER, TRAIN]
        assert load(source, "val").columns["speaker"].tolist() == [VAL]
        assert load(source, "test").targets.tolist() == [0, 2]
        wave = np.pad(read_wave(root / "yes" / f"{TRAIN}_nohash_0.wav", 8000), (0, 2400))
        assert np.array_equal(train.inputs[3], SpeechFeatures()(wave[None])[0])
        normalized = source.normalization(train.inputs)
        assert (float(normalized.mean()), float(normalized.std(correction=0))) == pytest.approx((0, 1), abs=1e-4)

    def test_the_rule_of_speech_commands(self) -> None:
        """Splits are those of the function in its README; val and test are a tenth each."""
        assert [official_split(name) for name in (TRAIN, OTHER, VAL, TEST)] == ["train", "train", "val", "test"]
        splits = [official_split(f"{number:08x}") for number in range(4000)]
        assert splits.count("val") / 4000 == pytest.approx(0.1, abs=0.02)
        assert splits.count("test") / 4000 == pytest.approx(0.1, abs=0.02)

    def test_listed_words_unknown_words_and_silence(self, root: Path) -> None:
        assert load(SpeechFolder(root, classes=["yes", "no"])).targets.tolist() == [1, 1, 0]
        source = SpeechFolder(root, classes=["yes", "no"], unknown=True, silence=0.5)
        assert source.class_names == ("yes", "no", "unknown", "silence")
        train = load(source)
        assert train.targets.tolist() == [2, 1, 1, 0, 3, 3]
        zeros = SpeechFeatures()(np.zeros((1, 8000), dtype=np.float32))[0]
        assert np.array_equal(train.inputs[4], zeros)
        assert set(train.columns["speaker"][4:]) <= {TRAIN, OTHER}
        write_wave(root / "_background_noise_" / "hum.wav", tone(100, 3))
        humming = load(SpeechFolder(root, classes=["yes", "no"], unknown=True, silence=0.5))
        assert not np.array_equal(humming.inputs[4], zeros)
        assert not np.array_equal(humming.inputs[4], humming.inputs[5])
        repeated = load(SpeechFolder(root, classes=["yes", "no"], unknown=True, silence=0.5))
        assert torch.equal(repeated.inputs, humming.inputs)

    def test_features_are_computed_once(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log: list[Path] = []
        monkeypatch.setattr(speech, "read_wave", lambda path, rate: log.append(path) or read_wave(path, rate))
        SpeechFolder(root).prepare()
        for split in ("train", "val", "test"):
            load(SpeechFolder(root, classes=["yes"]), split)
        assert len(log) == 7
        load(SpeechFolder(root, features=SpeechFeatures(stride=0.0199)))  # the shape is the same
        assert len(log) == 14

    def test_suffixes_of_any_case_are_read_and_other_files_counted(self, root: Path) -> None:
        (root / "yes" / f"{TRAIN}_nohash_0.wav").rename(root / "yes" / f"{TRAIN}_nohash_0.WAV")
        soundfile.write(root / "yes" / f"{OTHER}_nohash_0.Flac", tone(300), 16_000)
        for name in ("README.md", "yes/list.txt", "yes/x", "yes/.1.wav", ".git/1.wav", ".lit_fednas_cache/1.wav"):
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(b"no sound")
        (root / "linked").symlink_to(root / "no")
        source = SpeechFolder(root)
        assert load(source).targets.tolist() == [0, 1, 1, 2, 2]
        reasons = {".md": 1, ".txt": 1, "without a suffix": 1, "hidden": 2, "linked folder": 1}
        assert source.left_out["train"] == reasons

    @pytest.mark.parametrize("name", ["yes", "_background_noise_"])
    @pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("gone")])
    def test_pipes_and_broken_links_are_refused(self, root: Path, name: str, make: Any) -> None:
        path = root / name / f"{TRAIN}_nohash_1.wav"
        path.parent.mkdir(exist_ok=True)
        make(path)
        with pytest.raises(DataError, match=rf"{path} (is not a file|is missing|is a broken link|cannot be read)"):
            load(SpeechFolder(root, silence=0.5))

    @pytest.mark.parametrize(
        ("folder", "settings", "message"),
        [
            ("odd", {}, r"pattern: does not match odd\.wav"),
            ("", {"classes": ["dog"]}, r"classes: 'dog' is not a word of .*; choose from: bed, no, yes"),
            ("", {"unknown": True}, "unknown"),
            ("", {"pattern": r"(?P<label>[a-z]+)/(?P<speaker>x*)"}, r"pattern: does not match"),
            ("yes/none", {}, "yes/none is not a folder"),
        ],
    )
    def test_faults_are_named(self, root: Path, folder: str, settings: dict[str, Any], message: str) -> None:
        if folder == "odd":
            write_wave(root / "odd" / "odd.wav", tone(100))
        with pytest.raises((ConfigError, DataError), match=message):
            load(SpeechFolder(root / folder, **settings))
