from collections.abc import Callable

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode, autoaugment
from torchvision.transforms.v2 import functional as tv

from lit_fednas.data import Cutout, Normalize, RandAugment, RandomCrop, RandomFlip
from lit_fednas.errors import ConfigError
from lit_fednas.rng import generator


def images(count: int = 6, dtype: torch.dtype = torch.uint8, shape: tuple[int, ...] = (3, 7, 9)) -> torch.Tensor:
    return torch.randint(1, 256, (count, *shape), generator=generator(0, "images")).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_normalize_equals_torchvision(dtype: torch.dtype) -> None:
    mean, std, batch = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616], images(dtype=dtype)
    before = batch.clone()
    result = Normalize(mean, std)(batch)
    torch.testing.assert_close(result, tv.normalize(batch.float() / (255 if dtype == torch.uint8 else 1), mean, std))
    assert torch.equal(batch, before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_equals_per_example_reference(dtype: torch.dtype) -> None:
    batch, padding = images(50, dtype), 3
    before = batch.clone()
    result = RandomCrop(padding)(batch, generator(1, "crop"))
    offsets = torch.randint(0, 2 * padding + 1, (2, 50, 1), generator=generator(1, "crop")).squeeze(-1)
    for row in range(50):
        top, left = offsets[:, row].tolist()
        padded = tv.pad(before[row], [padding] * 4)
        assert torch.equal(result[row], tv.crop(padded, top, left, 7, 9))
    assert result.dtype == dtype
    assert torch.equal(batch, before)


def test_flip_equals_per_example_reference() -> None:
    batch = images(400)
    before = batch.clone()
    result = RandomFlip(0.3)(batch, generator(2, "flip"))
    mirrored = [torch.equal(one, tv.horizontal_flip(other)) for one, other in zip(result, before, strict=True)]
    assert all(is_mirrored or torch.equal(result[row], before[row]) for row, is_mirrored in enumerate(mirrored))
    assert 0.2 < sum(mirrored) / 400 < 0.4
    assert torch.equal(batch, before)


@pytest.mark.parametrize(("dtype", "fill"), [(torch.uint8, [125, 123, 114]), (torch.float32, [0.4914, 0.4822, 0.4465])])
def test_cutout_equals_per_example_reference(dtype: torch.dtype, fill: list[float]) -> None:
    batch = images(300, dtype)
    before = batch.clone()
    result = Cutout(4, [0.4914, 0.4822, 0.4465])(batch, generator(5, "cut"))
    draws = generator(5, "cut")
    rows, columns = (torch.randint(0, length, (300, 1), generator=draws).flatten().tolist() for length in (7, 9))
    for row in range(300):
        expected = before[row].clone()
        top, left = max(0, rows[row] - 2), max(0, columns[row] - 2)  # what lies outside of the image is lost
        expected[:, top : rows[row] + 2, left : columns[row] + 2] = torch.tensor(fill, dtype=dtype)[:, None, None]
        assert torch.equal(result[row], expected)
    assert torch.equal(batch, before)


@pytest.mark.parametrize(("shape", "magnitude"), [((3, 9, 12), 0), ((1, 12, 9), 9), ((3, 9, 12), 30)])
def test_rand_augment_has_the_operations_of_torchvision(shape: tuple[int, ...], magnitude: int) -> None:
    """Torchvision changes one image at a time; of its 14 operations, 9 go either way."""
    space = autoaugment.RandAugment()._augmentation_space(31, shape[1:])
    batch = images(4, shape=shape)
    expected = []
    for name, (magnitudes, signed) in space.items():
        strength = magnitudes[magnitude].item() if magnitudes.ndim else 0.0
        for sign in (1, -1) if signed else (1, 1):
            changed = [
                autoaugment._apply_op(image, name, sign * strength, InterpolationMode.NEAREST, None) for image in batch
            ]
            expected.append(torch.stack(changed))
    made = [operation(batch) for operation in RandAugment(1, magnitude).operations(batch)]
    assert len(made) == len(expected) == 28
    for one in expected:  # the older functions of torchvision round otherwise
        alike = [sum(int((one.int() - other.int()).abs().max()) <= 1 for other in those) for those in (made, expected)]
        assert alike[0] == alike[1] > 0


def test_each_image_draws_its_own_operations() -> None:
    """One after the other, all alike often."""
    image = images(1, shape=(3, 16, 16))
    augment = RandAugment(2, 9)
    operations = augment.operations(image)
    result = augment(image.expand(6000, -1, -1, -1), generator(3, "rand"))
    expected = [second(first(image))[0] for first in operations for second in operations]
    drawn = torch.randint(28, (2, 6000), generator=generator(3, "rand"))
    for number in range(0, 6000, 50):
        first, second = drawn[:, number].tolist()
        assert torch.equal(result[number], expected[28 * first + second])
    assert np.bincount(drawn.flatten(), minlength=28).min() > 350  # of 12000 / 28 = 429, with a deviation of 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normalize([0.1], [0.1, 0.2]), "std"),
        (lambda: RandAugment(2, 31), "magnitude: 31"),
        (lambda: Cutout(2, [0.1, 0.2])(images(), generator(0, "cut")), "fill: .* does not match images of 3 channels"),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
