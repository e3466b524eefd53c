"""Recordings of spoken words, in folders like those of Speech Commands (Warden, 2018).

Mel-frequency features have the formulas of torchaudio's defaults: HTK's mel scale, triangles of height 1, the power of
a centred, reflected short-time Fourier transform with a Hann window, and ``log_mels=True``. (torchaudio itself cannot
be imported beside a torch that was built for another version of CUDA.)
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.fft import dct
from scipy.signal import resample_poly
from torch import Tensor
from tqdm import tqdm
from typing_extensions import override

from lit_fednas.data.examples import Examples
from lit_fednas.data.sources.base import CACHE, DataSource, Split, cached, file_stamps, kind_of, reading
from lit_fednas.data.transforms import Normalize
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, checked
from lit_fednas.rng import numpy_generator

#: Raise this when the computation of features changes, so that older cache files are not read.
CACHE_VERSION = 2
#: Suffixes of recordings, in formats of which libsndfile detects truncated files.
SUFFIXES = (".aif", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".rf64", ".snd", ".w64", ".wav")
#: libsndfile's text on a truncated file: the size in the header, and the real size.
_CUT = re.compile(r"^\s*(?:data|SSND|Data Size|riff|Riff size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
#: Maximum number of samples of a file, over all channels.
LONGEST = 2**28
#: Speech Commands' folder of long recordings without words.
BACKGROUND = "_background_noise_"
#: Added to a power before its logarithm, as in torchaudio.
FLOOR = 1e-6


@checked("data.source.features")
@dataclass(frozen=True)
class SpeechFeatures:
    """The features of a recording; the defaults are FedorAS' (appendix E): a second becomes 40x51.

    Args:
        kind: ``log_mel`` is the logarithm of the power in mel bands, ``mfcc`` its discrete cosine transform.
        rate: Samples per second, to which recordings are resampled.
        window: Length of a frame, in seconds.
        stride: Time from one frame to the next, in seconds.
        mels: Number of mel bands, which the paper does not state. (Its authors' code has torchaudio's default, 128,
            and pads frames from 320 to 400 samples for it.)
        coefficients: Number of coefficients of the cosine transform, for ``mfcc``; at most ``mels``.
        seconds: Length of a recording; longer ones are cut, shorter ones are padded with silence.
    """

    kind: Literal["mfcc", "log_mel"] = "mfcc"
    rate: PositiveInt = 8000
    window: PositiveFloat = 0.04
    stride: PositiveFloat = 0.02
    mels: PositiveInt = 40
    coefficients: PositiveInt = 40
    seconds: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        if self.kind == "mfcc" and self.coefficients > self.mels:
            field = f"data.source.features.coefficients: {self.coefficients}"
            raise ConfigError(f"{field} is more than {self.mels} mels; give {self.mels} or less")
        if round(self.stride * self.rate) < 1 or self.samples <= round(self.window * self.rate) // 2:
            field = f"data.source.features.window: {self.window} with stride {self.stride}"
            raise ConfigError(f"{field} does not fit into {self.seconds} s at {self.rate} Hz; give other lengths")

    @property
    def samples(self) -> int:
        """The number of samples of a cut or padded recording."""
        return round(self.seconds * self.rate)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the features: (1, coefficients or mels, frames)."""
        rows = self.coefficients if self.kind == "mfcc" else self.mels
        return (1, rows, 1 + self.samples // round(self.stride * self.rate))

    def __call__(self, waves: np.ndarray) -> np.ndarray:
        """Returns the features ``[N, 1, rows, frames]`` of recordings ``[N, samples]``."""
        size, stride = round(self.window * self.rate), round(self.stride * self.rate)
        window = torch.hann_window(size)
        spectrum = torch.stft(torch.from_numpy(waves), size, stride, window=window, return_complex=True)
        bands = mel_filters(self.mels, size, self.rate) @ spectrum.abs().square()
        logs = (bands + FLOOR).log().numpy()
        if self.kind == "mfcc":
            logs = dct(logs, axis=1, norm="ortho")[:, : self.coefficients]
        return logs[:, None].astype(np.float32)


@checked("data.source")
class SpeechFolder(DataSource):
    r"""Sound files below a folder, with the word and the speaker in their paths, and a column ``speaker``.

    Reads WAV, FLAC, Ogg and other formats of libsndfile, with ``pip install 'lit-fednas[speech]'``. Features of all
    files are computed once, and kept as one array in the folder or in the user's cache folder. They are normalised by
    the mean and standard deviation of the training split.

    The defaults are for Speech Commands. The Free Spoken Digit Dataset has all files in one folder, named by digit,
    speaker and number; its test split has the numbers 0 to 4: ``pattern: (?P<label>\d)_(?P<speaker>[a-z]+)_\d+\.wav``,
    ``split: {test: '_[0-4]\.wav'}``.

    Args:
        root: The folder.
        pattern: A regular expression with groups ``label`` and ``speaker``, found in each path below the folder.
        split: Regular expressions by split, ``val`` and ``test``, which match only in the split's paths. None is the
            rule of Speech Commands: a hash of the speaker's name (the text before ``_nohash_``) chooses about a tenth
            of the speakers for ``val`` and a tenth for ``test``.
        classes: The words of the classes, in order; None takes all words, alphabetically.
        unknown: Whether all other words are an additional class, ``unknown``; otherwise they are left out.
        silence: Number of examples of an additional class ``silence``, as a share of each split's recordings. They are
            random pieces of the recordings in ``_background_noise_``, at a random volume and with random speakers;
            zeros without such recordings.
        features: Settings of the features.

    Example:
        >>> source = SpeechFolder("speech_commands", classes=["yes", "no"], unknown=True, silence=0.1)
        >>> source.class_names, source.input_shape
        (('yes', 'no', 'unknown', 'silence'), (1, 40, 51))
    """

    def __init__(
        self,
        root: str | Path,
        pattern: str = r"(?P<label>[^/]+)/(?P<speaker>[0-9a-f]{8})_nohash_",
        split: Mapping[str, str] | None = None,
        classes: Sequence[str] | None = None,
        unknown: bool = False,
        silence: NonNegativeFloat = 0.0,
        features: SpeechFeatures = SpeechFeatures(),
    ) -> None:
        self.root = Path(root).expanduser()
        self.pattern = _compiled(pattern, "pattern")
        if not {"label", "speaker"} <= set(self.pattern.groupindex):
            raise ConfigError(f"data.source.pattern: {pattern!r} lacks groups; add (?P<label>...), (?P<speaker>...)")
        if split is not None and not set(split) <= {"val", "test"}:
            raise ConfigError(f"data.source.split: {sorted(split)} are not splits; give patterns of val and test")
        self.split = None if split is None else {name: _compiled(text, f"split.{name}") for name, text in split.items()}
        if unknown and classes is None:
            raise ConfigError("data.source.unknown: true has no effect if all words are classes; give classes")
        self.classes = classes
        self.unknown = unknown
        self.silence = silence
        self.features = features
        self.input_shape = features.shape
        self.preprocessing = asdict(features)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The words, and ``unknown`` and ``silence`` if they are classes."""
        words = self.classes or sorted(self._recordings["label"].unique())
        return (*words, *["unknown"] * self.unknown, *["silence"] * bool(self.silence))

    @cached_property
    def normalization(self) -> Normalize:  # type: ignore[override]
        """The transform to mean 0 and standard deviation 1 in the training split."""
        train = self.load("train")
        assert train is not None  # the data module has loaded it
        return Normalize.of(train.inputs)

    @override
    def prepare(self, in_memory: bool = True) -> None:
        self._features()

    @override
    def load(self, split: Split) -> Examples | None:
        numbers = {name: number for number, name in enumerate(self.class_names)}
        others = numbers["unknown"] if self.unknown else -1
        labels = np.array([numbers.get(label, others) for label in self._recordings["label"]], dtype=np.int64)
        rows = np.flatnonzero((self._recordings["split"] == split) & (labels >= 0))
        if not len(rows):
            return None
        inputs, targets = self._features()[rows], labels[rows]
        speakers = self._recordings["speaker"].to_numpy()[rows].astype(str)
        if count := round(self.silence * len(rows)):
            draws = numpy_generator(0, f"speech-silence-{split}")
            parts = np.split(self._silence(count, draws), range(256, count, 256))  # limits memory, as in _compute
            inputs = np.concatenate([inputs, *map(self.features, parts)])
            targets = np.append(targets, [numbers["silence"]] * count)
            speakers = np.append(speakers, draws.choice(speakers, count))
        return Examples(torch.from_numpy(inputs), torch.from_numpy(targets), {"speaker": speakers})

    @cached_property
    def _recordings(self) -> Any:
        """All files except the background's, sorted by their names: ``name, label, speaker, split``."""
        import pandas as pd  # takes a while to import

        recordings = []
        for name in self._names:
            if name.startswith(f"{BACKGROUND}/"):
                continue
            match = self.pattern.search(name)
            if not (match and match["label"] and match["speaker"]):
                raise DataError(f"data.source.pattern: does not match {name}; correct it, or move the file away")
            recordings.append((name, match["label"], match["speaker"], self._split(name, match["speaker"])))
        if not recordings:
            raise DataError(f"data.source.root: {self.root} has no recordings; give a folder that holds some")
        table = pd.DataFrame(recordings, columns=["name", "label", "speaker", "split"])
        if missing := sorted(set(self.classes or ()) - set(table["label"])):
            words = ", ".join(sorted(table["label"].unique()))
            raise ConfigError(f"data.source.classes: {missing[0]!r} is not a word of {self.root}; choose from: {words}")
        return table

    @cached_property
    def _names(self) -> list[str]:
        """All sound files below the folder, sorted; counts all other entries as omissions of ``train``."""
        if not self.root.is_dir():
            raise DataError(f"data.source.root: {self.root} is not a folder; give the one that holds the recordings")
        names: list[str] = []
        omissions = self.left_out["train"] = Counter()
        for parent, folders, files in os.walk(self.root, onerror=_refuse):
            prefix = os.path.relpath(parent, self.root)
            if folder := next((name for name in folders if kind_of(name) in SUFFIXES), None):
                raise DataError(f"data.source.root: {os.path.join(parent, folder)} is not a file; move it away")
            names += [os.path.normpath(os.path.join(prefix, name)) for name in files if kind_of(name) in SUFFIXES]
            omissions.update(kind_of(name) for name in files if kind_of(name) not in SUFFIXES)
            omissions.update("hidden" for name in folders if name.startswith(".") and name != CACHE)
            omissions.update("linked folder" for name in folders if os.path.islink(os.path.join(parent, name)))
            folders[:] = [name for name in folders if not name.startswith(".")]
        return sorted(names)

    def _split(self, name: str, speaker: str) -> Split:
        if self.split is None:
            return official_split(speaker)
        splits = [split for split, pattern in self.split.items() if pattern.search(name)]
        if len(splits) > 1:
            raise ConfigError(f"data.source.split: val and test both match {name}; give patterns that differ")
        return splits[0] if splits else "train"  # type: ignore[return-value]

    def _features(self) -> np.ndarray:
        """Returns the features of all recordings, from the cache or computed."""
        names = self._recordings["name"].tolist()
        content = json.dumps([CACHE_VERSION, asdict(self.features), names, file_stamps(self.root, names)])
        shape = (len(names), *self.features.shape)
        stem = "-".join([self.features.kind, "x".join(map(str, self.features.shape))])
        return cached(self.root, stem, content, shape, lambda: self._compute(names), np.float32)

    def _compute(self, names: Sequence[str]) -> np.ndarray:
        features = np.empty((len(names), *self.features.shape), dtype=np.float32)
        for start in tqdm(range(0, len(names), 256), desc="Features", unit="x256", disable=None):
            part = names[start : start + 256]
            waves = [fitted(read_wave(self.root / name, self.features.rate), self.features.samples) for name in part]
            features[start : start + 256] = self.features(np.stack(waves))
        return features

    def _silence(self, count: int, draws: np.random.Generator) -> np.ndarray:
        """Returns random pieces of the background's recordings, float32 ``[count, samples]``."""
        samples, rate = self.features.samples, self.features.rate
        noises = [read_wave(self.root / name, rate) for name in self._names if name.startswith(f"{BACKGROUND}/")]
        waves = np.zeros((count, samples), dtype=np.float32)
        for wave in waves if noises else ():
            noise = noises[draws.integers(len(noises))]
            start = draws.integers(max(1, len(noise) - samples + 1))
            wave[:] = fitted(noise[start:], samples) * draws.random()
        return waves


def official_split(speaker: str) -> Split:
    """Returns the split of a speaker in Speech Commands, by the rule in its README."""
    max_hash = 2**27 - 1
    percentage = int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % (max_hash + 1) * (100 / max_hash)
    return "val" if percentage < 10 else "test" if percentage < 20 else "train"


def _refuse(error: OSError) -> None:
    raise DataError(f"data.source.root: {error.filename} cannot be read ({error.strerror}); move it away") from error


def _compiled(pattern: str, field: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"data.source.{field}: {pattern!r} is not a regular expression ({error})") from None


def mel_filters(count: int, size: int, rate: int) -> Tensor:
    """Returns triangular filters, evenly spaced on the mel scale from 0 to half the rate, ``[count, frequencies]``."""
    highest = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, highest, count + 2) / 2595) - 1)
    frequencies = np.linspace(0, rate / 2, size // 2 + 1)
    low, centre, high = (edges[start : start + count, None] for start in range(3))
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    filters = np.minimum(rising, falling).clip(min=0)
    if not filters.any(axis=1).all():
        raise ConfigError(f"data.source.features.mels: {count} is too many for frames of {size} samples; give fewer")
    return torch.from_numpy(filters.astype(np.float32))


def read_wave(path: Path, rate: int) -> np.ndarray:
    """Returns a sound file's resampled samples, float32 ``[T]`` from -1 to 1, as the mean of its channels."""
    try:
        import soundfile  # an extra
    except (ImportError, OSError) as error:  # OSError without libsndfile
        raise ConfigError("data.source: SpeechFolder needs soundfile; pip install 'lit-fednas[speech]'") from error
    with reading(path, "data.source.root"), soundfile.SoundFile(path) as file:
        recorded, count = file.samplerate, file.frames
        if not 1_000 <= recorded <= 400_000:
            raise ValueError(f"its header declares {recorded:,} samples per second")
        if count * file.channels > LONGEST:
            raise ValueError(f"its header declares {count:,} samples in {file.channels} channels, which is too long")
        samples = file.read(dtype="float32", always_2d=True)
        sizes = _CUT.findall(file.extra_info)
        if len(samples) < count or any(int(declared) > int(actual) for declared, actual in sizes):
            raise ValueError("it is truncated: it has fewer samples than its header declares")
        if not samples.size:
            raise ValueError("it has no samples")
        if not np.isfinite(samples).all():
            raise ValueError("it holds NaN or infinity")
    wave = samples.mean(axis=1)
    shared = math.gcd(rate, recorded)
    return resample_poly(wave, rate // shared, recorded // shared) if rate != recorded else wave


def fitted(wave: np.ndarray, samples: int) -> np.ndarray:
    """Returns a recording, cut or padded with zeros to ``[samples]``."""
    return np.pad(wave[:samples], (0, max(0, samples - len(wave))))
