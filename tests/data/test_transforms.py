from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2
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
def test_rand_augment_applies_what_torchvision_does(shape: tuple[int, ...], magnitude: int) -> None:
    """Torchvision changes one image at a time; of its 14 operations, 9 go either way, and each is as likely."""
    image = images(1, shape=shape)
    reference = v2.RandAugment(1, magnitude)
    with torch.random.fork_rng():
        expected = Counter(reference(image[0]).numpy().tobytes() for _ in range(6000))
    result = RandAugment(1, magnitude)(image.expand(6000, -1, -1, -1), generator(3, "rand"))
    made = Counter(changed.numpy().tobytes() for changed in result)
    assert made.keys() == expected.keys()
    assert all(abs(count - expected[pixels]) < 200 for pixels, count in made.items())  # of 214 at least, 428 usually


def test_rand_augment_takes_floats() -> None:
    image, reference = images(1) / 256, v2.RandAugment(1, 9)
    with torch.random.fork_rng():
        expected = torch.stack([reference(image[0]) for _ in range(600)]).flatten(1)
    # several operations go by uint8, where one pixel may round otherwise
    distances = torch.cdist(draws_of(RandAugment(1, 9), image, 600).flatten(1), expected)
    assert distances.min(0).values.max() < 0.02
    assert distances.min(1).values.max() < 0.02


def test_rand_augment_applies_one_operation_after_the_other() -> None:
    image = images(1, shape=(3, 16, 16))
    once = {changed.numpy().tobytes(): changed for changed in draws_of(RandAugment(1, 9), image, 600)}
    twice = {changed.numpy().tobytes() for changed in draws_of(RandAugment(2, 9), image, 600)}
    again = {
        changed.numpy().tobytes() for one in once.values() for changed in draws_of(RandAugment(1, 9), one[None], 600)
    }
    assert len(twice) > len(once)
    assert twice <= again


def draws_of(augment: RandAugment, image: Tensor, count: int) -> Tensor:
    return augment(image.expand(count, -1, -1, -1), generator(3, "rand", augment.num_ops))


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
