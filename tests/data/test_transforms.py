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
    original = batch.clone()
    result = Normalize(mean, std)(batch)
    torch.testing.assert_close(result, tv.normalize(batch.float() / (255 if dtype == torch.uint8 else 1), mean, std))
    assert torch.equal(batch, original)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_equals_per_example_reference(dtype: torch.dtype) -> None:
    batch, padding = images(50, dtype), 3
    original = batch.clone()
    result = RandomCrop(padding)(batch, generator(1, "crop"))
    offsets = torch.randint(0, 2 * padding + 1, (2, 50, 1), generator=generator(1, "crop")).squeeze(-1)
    for row in range(50):
        padded = tv.pad(original[row], [padding] * 4)
        assert torch.equal(result[row], tv.crop(padded, *offsets[:, row].tolist(), 7, 9))
    assert result.dtype == dtype
    assert torch.equal(batch, original)


def test_flip_equals_per_example_reference() -> None:
    batch = images(400)
    original = batch.clone()
    result = RandomFlip(0.3)(batch, generator(2, "flip"))
    mirrored = [torch.equal(image, tv.horizontal_flip(other)) for image, other in zip(result, original, strict=True)]
    assert all(is_mirrored or torch.equal(result[row], original[row]) for row, is_mirrored in enumerate(mirrored))
    assert 0.2 < sum(mirrored) / 400 < 0.4
    assert torch.equal(batch, original)


@pytest.mark.parametrize(("dtype", "fill"), [(torch.uint8, [125, 123, 114]), (torch.float32, [0.4914, 0.4822, 0.4465])])
def test_cutout_equals_per_example_reference(dtype: torch.dtype, fill: list[float]) -> None:
    batch = images(300, dtype)
    original = batch.clone()
    result = Cutout(4, [0.4914, 0.4822, 0.4465])(batch, generator(5, "cut"))
    draws = generator(5, "cut")
    rows, columns = (torch.randint(0, length, (300, 1), generator=draws).flatten().tolist() for length in (7, 9))
    for row in range(300):
        expected = original[row].clone()
        height, width = (slice(max(0, centre - 2), centre + 2) for centre in (rows[row], columns[row]))
        expected[:, height, width] = torch.tensor(fill, dtype=dtype)[:, None, None]
        assert torch.equal(result[row], expected)
    assert torch.equal(batch, original)


@pytest.mark.parametrize(("shape", "magnitude"), [((3, 9, 12), 0), ((1, 12, 9), 9), ((3, 9, 12), 30)])
def test_rand_augment_equals_torchvision_in_distribution(shape: tuple[int, ...], magnitude: int) -> None:
    """Torchvision changes one image at a time; its 14 operations are equally likely, and 9 of them have a sign."""
    image = images(1, shape=shape)
    reference = v2.RandAugment(1, magnitude)
    with torch.random.fork_rng():
        expected = Counter(reference(image[0]).numpy().tobytes() for _ in range(6000))
    result = RandAugment(1, magnitude)(image.expand(6000, -1, -1, -1), generator(3, "rand"))
    counts = Counter(changed.numpy().tobytes() for changed in result)
    assert counts.keys() == expected.keys()
    assert all(abs(count - expected[pixels]) < 200 for pixels, count in counts.items())  # most counts are about 428


def test_rand_augment_takes_floats() -> None:
    image, reference = images(1) / 256, v2.RandAugment(1, 9)
    with torch.random.fork_rng():
        expected = torch.stack([reference(image[0]) for _ in range(600)]).flatten(1)
    # several operations convert to uint8, where a pixel may be rounded differently
    distances = torch.cdist(draws_of(RandAugment(1, 9), image, 600).flatten(1), expected)
    assert distances.min(0).values.max() < 0.02
    assert distances.min(1).values.max() < 0.02


def test_rand_augment_applies_one_operation_after_the_other() -> None:
    image = images(1, shape=(3, 16, 16))
    singles = {changed.numpy().tobytes(): changed for changed in draws_of(RandAugment(1, 9), image, 600)}
    pairs = {changed.numpy().tobytes() for changed in draws_of(RandAugment(2, 9), image, 600)}
    expected = {
        changed.numpy().tobytes()
        for single in singles.values()
        for changed in draws_of(RandAugment(1, 9), single[None], 600)
    }
    assert len(pairs) > len(singles)
    assert pairs <= expected


def draws_of(augment: RandAugment, image: Tensor, count: int) -> Tensor:
    return augment(image.expand(count, -1, -1, -1), generator(3, "rand", augment.num_ops))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normalize([0.1], [0.1, 0.2]), "std"),
        (lambda: RandAugment(2, 31), "magnitude: 31"),
        (lambda: Cutout(2, [0.1, 0.2])(images(), generator(0, "cut")), "fill: .* for 3 channels; give one, or one per"),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
