"""Mel-frequency features of sound, by torch and scipy.

torchaudio has them too, but refuses to be imported beside a torch that was built for another version of CUDA, which its
last release, 2.11, is for the newest torch. Formulas are those of its defaults: HTK's mel scale, triangles of
height 1, the power of a centred, reflected short-time Fourier transform with a Hann window, and ``log_mels=True``.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from scipy.fft import dct
from scipy.signal import resample_poly
from torch import Tensor

from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import PositiveFloat, PositiveInt, checked

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

    Raises:
        ConfigError: A setting is out of range.

    Example:
        >>> SpeechFeatures().shape, SpeechFeatures(rate=16000, kind="log_mel", mels=64).shape
        ((1, 40, 51), (1, 64, 51))
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
        """Returns the features of recordings."""
        size = round(self.window * self.rate)
        spectrum = torch.stft(
            torch.from_numpy(waves),
            size,
            round(self.stride * self.rate),
            window=torch.hann_window(size),
            return_complex=True,
        )
        bands = mel_filters(self.mels, size, self.rate) @ spectrum.abs().square()
        logs = (bands + FLOOR).log().numpy()
        if self.kind == "mfcc":
            logs = dct(logs, axis=1, norm="ortho")[:, : self.coefficients]
        return logs[:, None].astype(np.float32)


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
    """Returns a WAV file's samples, float32 ``[T]`` from -1 to 1, resampled; the mean of its channels."""
    from scipy.io import wavfile  # here: one source of many needs it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # of chunks that are no sound
            recorded, samples = wavfile.read(path)
    except (OSError, ValueError) as error:
        raise DataError(f"data.source.root: {path} cannot be read ({error}); replace or remove the file") from error
    if not samples.size:
        raise DataError(f"data.source.root: {path} has no samples; replace or remove the file")
    wave = samples.astype(np.float32)
    if samples.dtype == np.uint8:
        wave = (wave - 128) / 128
    elif samples.dtype.kind == "i":
        wave /= -float(np.iinfo(samples.dtype).min)
    if wave.ndim == 2:
        wave = wave.mean(axis=1)
    shared = math.gcd(rate, recorded)
    return resample_poly(wave, rate // shared, recorded // shared) if rate != recorded else wave


def fitted(wave: np.ndarray, samples: int) -> np.ndarray:
    """Returns a recording cut or followed by zeros, ``[samples]``."""
    return np.pad(wave[:samples], (0, max(0, samples - len(wave))))
