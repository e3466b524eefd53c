"""Which images are decoded."""

import numpy as np
import pytest

from lit_fednas.data.sources.images import LazyImages


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records which splits are decoded whole."""
    log: list[str] = []
    real = LazyImages.decode

    def spy(images: LazyImages) -> np.ndarray:
        log.append(images.label)
        return real(images)

    monkeypatch.setattr(LazyImages, "decode", spy)
    return log
