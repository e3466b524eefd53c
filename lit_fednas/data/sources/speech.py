"""Recordings of spoken words, laid out as Speech Commands (Warden, 2018) or the Free Spoken Digit Dataset are.

Mel-frequency features have the formulas of torchaudio's defaults: HTK's mel scale, triangles of height 1, the power of
a centred, reflected short-time Fourier transform with a Hann window, and ``log_mels=True``. (torchaudio itself refuses
to be imported beside a torch that was built for another version of CUDA.)
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
#: Of files that are recordings; libsndfile says of these if they hold less than their header says.
SUFFIXES = (".aif", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".rf64", ".snd", ".w64", ".wav")
#: How libsndfile says it.
_CUT = re.compile(r"^\s*(?:data|SSND|Data Size|riff|Riff size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
#: Samples of all channels that are read from one file.
LONGEST = 2**28
#: Speech Commands' folder of long recordings without words.
BACKGROUND = "_background_noise_"
#: What is added to a power before its logarithm, as in torchaudio.
FLOOR = 1e-6


@checked("data.source.features")
@dataclass(frozen=True)
class SpeechFeatures:
    """What is computed from a recording; the defaults are FedorAS' (appendix E): a second becomes 40x51.

    Args:
        kind: ``mfcc``: the discrete cosine transform of ``log_mel``, the logarithms of the power in mel bands.
        rate: Samples per second that recordings are resampled to.
        window: Length of a frame, in seconds.
        stride: From one frame to the next, in seconds.
        mels: The number of mel bands; the paper does not say it. (The code of its authors has torchaudio's default,
            128, for which it fills frames of 320 samples up to 400.)
        coefficients: Of the cosine transform, for ``mfcc``; at most ``mels``.
        seconds: The end of longer recordings is cut off; shorter ones are followed by silence.
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
            raise ConfigError(f"{field} are more than {self.mels} mels; give at most so many")
        if round(self.stride * self.rate) < 1 or self.samples <= round(self.window * self.rate) // 2:
            field = f"data.source.features.window: {self.window} with stride {self.stride}"
            raise ConfigError(f"{field} does not fit into {self.seconds} s at {self.rate} Hz; give other lengths")

    @property
    def samples(self) -> int:
        """Samples of a recording, once it is cut or filled up."""
        return round(self.seconds * self.rate)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(1, coefficients or mels, frames)."""
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
    r"""Sound files below a folder, whose paths tell the word and the speaker; with a column ``speaker``.

    WAV, FLAC, Ogg and what else libsndfile reads, with ``pip install 'lit-fednas[speech]'``. Features of all files are
    computed once, and kept as one array in the folder or in the user's cache folder. They are normalised by mean and
    standard deviation of those of the training split.

    The defaults are for Speech Commands. The Free Spoken Digit Dataset has all files in one folder, named by digit,
    speaker and number, and those of the numbers 0 to 4 are its test split: ``pattern:
    (?P<label>\d)_(?P<speaker>[a-z]+)_\d+\.wav``, ``split: {test: '_[0-4]\.wav'}``.

    Args:
        root: The folder.
        pattern: A regular expression that is found in each path below the folder; with groups ``label`` and
            ``speaker``.
        split: Regular expressions ``val`` and ``test``, which are found in the paths of these splits and in no
            others. None is the rule of Speech Commands: by a hash of the speaker's name (what comes before
            ``_nohash_``), about a tenth of the speakers are ``val`` and a tenth ``test``.
        classes: The words that are kept, in the order of their classes; None is all, in alphabetical order.
        unknown: Whether all other words are one more class, ``unknown``; else they are left out.
        silence: As many examples of one more class, ``silence``, as this share of each split's recordings: pieces of
            the recordings in ``_background_noise_``, at a volume from 0 to 1; zeros, if there are none. Their
            speakers are drawn.
        features: What is computed from each recording.

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
            raise ConfigError(f"data.source.pattern: {pattern!r} lacks groups; name (?P<label>...), (?P<speaker>...)")
        if split is not None and not set(split) <= {"val", "test"}:
            raise ConfigError(f"data.source.split: {sorted(split)} are not splits; give patterns of val and test")
        self.split = None if split is None else {name: _compiled(text, f"split.{name}") for name, text in split.items()}
        if unknown and classes is None:
            raise ConfigError("data.source.unknown: true leaves nothing over of all words; give classes")
        self.classes = classes
        self.unknown = unknown
        self.silence = silence
        self.features = features
        self.input_shape = features.shape
        self.preprocessing = asdict(features)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The words, and ``unknown`` and ``silence`` where they are classes."""
        words = self.classes or sorted(self._recordings["label"].unique())
        return (*words, *["unknown"] * self.unknown, *["silence"] * bool(self.silence))

    @cached_property
    def normalization(self) -> Normalize:  # type: ignore[override]
        """By mean and standard deviation of the training split."""
        train = self.load("train")
        assert train is not None  # else it is not asked for
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
            parts = np.split(self._silence(count, draws), range(256, count, 256))  # as in _computed
            inputs = np.concatenate([inputs, *map(self.features, parts)])
            targets = np.append(targets, [numbers["silence"]] * count)
            speakers = np.append(speakers, draws.choice(speakers, count))
        return Examples(torch.from_numpy(inputs), torch.from_numpy(targets), {"speaker": speakers})

    @cached_property
    def _recordings(self) -> Any:
        """All files but those of the background, in the order of their names: ``name, label, speaker, split``."""
        import pandas as pd  # takes a while to import

        recordings = []
        for name in self._names:
            if name.startswith(f"{BACKGROUND}/"):
                continue
            found = self.pattern.search(name)
            if not (found and found["label"] and found["speaker"]):
                raise DataError(f"data.source.pattern: is not found in {name}; correct it, or move the file away")
            recordings.append((name, found["label"], found["speaker"], self._split(name, found["speaker"])))
        if not recordings:
            raise DataError(f"data.source.root: {self.root} has no recordings; give a folder that holds some")
        table = pd.DataFrame(recordings, columns=["name", "label", "speaker", "split"])
        if missing := sorted(set(self.classes or ()) - set(table["label"])):
            known = ", ".join(sorted(table["label"].unique()))
            raise ConfigError(f"data.source.classes: {missing[0]!r} is not a word of {self.root}; choose from: {known}")
        return table

    @cached_property
    def _names(self) -> list[str]:
        """All sound files below the folder, in order; what else there is counts as left out of ``train``."""
        if not self.root.is_dir():
            raise DataError(f"data.source.root: {self.root} is not a folder; give the one that holds the recordings")
        names: list[str] = []
        left_out = self.left_out["train"] = Counter()
        for place, folders, files in os.walk(self.root, onerror=_refuse):
            inside = os.path.relpath(place, self.root)
            if folder := next((name for name in folders if kind_of(name) in SUFFIXES), None):
                raise DataError(f"data.source.root: {os.path.join(place, folder)} is not a file; move it away")
            names += [os.path.normpath(os.path.join(inside, name)) for name in files if kind_of(name) in SUFFIXES]
            left_out.update(kind_of(name) for name in files if kind_of(name) not in SUFFIXES)
            left_out.update("hidden" for name in folders if name.startswith(".") and name != CACHE)
            left_out.update("linked folder" for name in folders if os.path.islink(os.path.join(place, name)))
            folders[:] = [name for name in folders if not name.startswith(".")]
        return sorted(names)

    def _split(self, name: str, speaker: str) -> Split:
        if self.split is None:
            return official_split(speaker)
        found = [split for split, pattern in self.split.items() if pattern.search(name)]
        if len(found) > 1:
            raise ConfigError(f"data.source.split: val and test are both found in {name}; give patterns that differ")
        return found[0] if found else "train"  # type: ignore[return-value]

    def _features(self) -> np.ndarray:
        """Returns those of all recordings, from the cache or computed."""
        names = self._recordings["name"].tolist()
        content = json.dumps([CACHE_VERSION, asdict(self.features), names, file_stamps(self.root, names)])
        shape = (len(names), *self.features.shape)
        stem = "-".join([self.features.kind, "x".join(map(str, self.features.shape))])
        return cached(self.root, stem, content, shape, lambda: self._computed(names), np.float32)

    def _computed(self, names: Sequence[str]) -> np.ndarray:
        features = np.empty((len(names), *self.features.shape), dtype=np.float32)
        for start in tqdm(range(0, len(names), 256), desc="Features", unit="x256", disable=None):
            part = names[start : start + 256]
            waves = [fitted(read_wave(self.root / name, self.features.rate), self.features.samples) for name in part]
            features[start : start + 256] = self.features(np.stack(waves))
        return features

    def _silence(self, count: int, draws: np.random.Generator) -> np.ndarray:
        """Returns pieces of the background, float32 ``[count, samples]``."""
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
    most = 2**27 - 1
    percentage = int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % (most + 1) * (100 / most)
    return "val" if percentage < 10 else "test" if percentage < 20 else "train"


def _refuse(error: OSError) -> None:
    raise DataError(f"data.source.root: {error.filename} cannot be read ({error.strerror}); move it away") from error


def _compiled(pattern: str, field: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"data.source.{field}: {pattern!r} is not a regular expression ({error})") from None


def mel_filters(count: int, size: int, rate: int) -> Tensor:
    """Returns triangles that are evenly spaced on the mel scale, from 0 to half the rate."""
    highest = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, highest, count + 2) / 2595) - 1)
    frequencies = np.linspace(0, rate / 2, size // 2 + 1)
    low, centre, high = (edges[start : start + count, None] for start in range(3))
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    filters = np.minimum(rising, falling).clip(min=0)
    if not filters.any(axis=1).all():
        raise ConfigError(f"data.source.features.mels: {count} are too many for frames of {size} samples; give fewer")
    return torch.from_numpy(filters.astype(np.float32))


def read_wave(path: Path, rate: int) -> np.ndarray:
    """Returns a sound file's samples, float32 ``[T]`` from -1 to 1, resampled; the mean of its channels."""
    try:
        import soundfile  # here: one source of many needs it
    except (ImportError, OSError) as error:  # the latter where libsndfile itself is missing
        raise ConfigError("data.source: SpeechFolder reads with soundfile; pip install 'lit-fednas[speech]'") from error
    with reading(path, "data.source.root"), soundfile.SoundFile(path) as file:
        recorded, count = file.samplerate, file.frames
        if not 1_000 <= recorded <= 400_000:
            raise ValueError(f"it says {recorded:,} samples per second")
        if count * file.channels > LONGEST:
            raise ValueError(f"it says {count:,} samples in {file.channels} channels, which is too long")
        samples = file.read(dtype="float32", always_2d=True)
        if len(samples) < count or any(int(said) > int(held) for said, held in _CUT.findall(file.extra_info)):
            raise ValueError("it is cut: it has fewer samples than it says")
        if not samples.size:
            raise ValueError("it has no samples")
        if not np.isfinite(samples).all():
            raise ValueError("it holds NaN or infinity")
    wave = samples.mean(axis=1)
    shared = math.gcd(rate, recorded)
    return resample_poly(wave, rate // shared, recorded // shared) if rate != recorded else wave


def fitted(wave: np.ndarray, samples: int) -> np.ndarray:
    """Returns a recording cut or followed by zeros, ``[samples]``."""
    return np.pad(wave[:samples], (0, max(0, samples - len(wave))))
