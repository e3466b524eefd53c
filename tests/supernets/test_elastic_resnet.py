import itertools

import pytest
import torch
from torch import nn

from lit_fednas.supernets import BatchNorm, ElasticArch, ElasticResNet, GroupNorm
from lit_fednas.supernets.elastic_resnet import ElasticSpace
from lit_fednas.testing.networks import elastic
from tests.support import refusals

TABLE_4 = [
    ("[0,0,0,0]", 0.1, 0.40),
    ("[0,0,0,1]", 0.14, 0.83),
    ("[0,1,0,1]", 0.14, 0.85),
    ("[0,1,1,1]", 0.14, 0.94),
    ("[1,1,1,1]", 0.18, 1.17),
    ("[1,1,1,2]", 0.22, 1.91),
    ("[1,2,1,2]", 0.22, 1.94),
    ("[1,2,2,2]", 0.22, 2.08),
    ("[2,2,2,2]", 0.25, 2.36),
]
TABLE_5 = [
    ("d:[1,0,0,0], e:[0.14, 0.18, 0.22, 0.1, 0.18, 0.14, 0.22, 0.18, 0.1, 0.22, 0.22, 0.14]", 0.94),
    ("d:[1,2,2,0], e:[0.25, 0.22, 0.22, 0.18, 0.18, 0.18, 0.22, 0.18, 0.18, 0.18, 0.25, 0.18]", 1.99),
    ("d:[2,2,2,2], e:[0.14, 0.22, 0.18, 0.25, 0.22, 0.14, 0.18, 0.25, 0.25, 0.25, 0.18, 0.1]", 2.72),
]


def on_meta(**settings: object) -> ElasticResNet:
    with torch.device("meta"):
        return ElasticResNet(**settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def paper() -> ElasticResNet:
    """The paper's supernet."""
    return on_meta()


def test_size_and_bounds_of_the_paper(paper: ElasticResNet) -> None:
    """Five ratios per block, one to three blocks per stage, four stages; ResNet-10 to ResNet-26."""
    assert paper.space.size == (5 + 5**2 + 5**3) ** 4 == 155**4 == 577_200_625
    rows = [paper.space.parse(f"d: {depths}, e: {ratio}") for depths, ratio, _ in TABLE_4]
    assert (rows[0], rows[-1]) == (paper.space.smallest, paper.space.largest)
    for arch, layers in ((rows[0], 10), (rows[-1], 26)):
        modules = list(paper.skeleton(arch).modules())
        convolutions = [m for m in modules if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
        assert len(convolutions) + sum(isinstance(m, nn.Linear) for m in modules) == layers


def test_canonical_is_the_same_network_and_idempotent() -> None:
    net = elastic(ratios=[0.25, 0.5], divisor=8)
    for ratios in itertools.product([0.25, 0.5], repeat=4):
        arch = ElasticArch((1, 0), ratios)
        canonical = net.space.canonical(arch)
        assert str(net.build(canonical)) == str(net.build(arch))
        assert net.space.canonical(canonical) == canonical
        assert canonical.ratios[:2] == (0.5, 0.5)  # both ratios give one width
        assert canonical.ratios[3] == canonical.ratios[2]  # the block is absent


@pytest.mark.parametrize(("text", "gmacs"), TABLE_5)
def test_macs_of_table_5(paper: ElasticResNet, text: str, gmacs: float) -> None:
    assert round(paper.cost(paper.space.parse(text)).macs / 1e9, 2) == gmacs


@pytest.mark.parametrize(("depths", "ratio", "gigabytes"), TABLE_4)
def test_rows_of_table_4(paper: ElasticResNet, depths: str, ratio: float, gigabytes: float) -> None:
    """Their gigabytes are what eight clients (C = 0.4 of 20) receive if the head has 1000 classes and the norms
    a scale and a shift: with these, all nine come out to the printed digits.
    """
    arch = paper.space.parse(f"d: {depths}, e: {ratio}")
    sent = on_meta(num_classes=1000, norm=BatchNorm(running_statistics=False))
    assert round(8 * sent.cost(arch).bytes / 1e9, 2) == gigabytes


@pytest.mark.parametrize(("cost", "times", "paper_says"), [("macs", 9.36, 9.43), ("parameters", 10.38, 10.94)])
def test_cost_ratios_of_section_3_3(paper: ElasticResNet, cost: str, times: float, paper_says: float) -> None:
    """Training nine subnets alone costs more than MaxNet with 8 clients a round, six of them with random subnets.

    A random subnet has on average one block per stage beyond the first (0, 1 or 2), of mean width. The paper's figures
    are from one run's draws; tolerances are 1 % and 6 %.
    """
    weights_alone = cost == "parameters"
    pixels, width = 32 * 32, 64
    random = 2048 * 10 + 10 * weights_alone + 27 * width * (1 if weights_alone else pixels)
    for stage, out in enumerate((256, 512, 1024, 2048)):
        middle = sum(paper.space.middle_width(out, ratio) for ratio in (0.1, 0.14, 0.18, 0.22, 0.25)) / 5
        weights = 9 * middle * (width + out) + width * out + 18 * middle * out
        random += weights * (1 if weights_alone else pixels >> 2 * stage)
        width = out
    archs = [paper.space.parse(f"d: {depths}, e: {ratio}") for depths, ratio, _ in TABLE_4]
    nine = [getattr(paper.cost(arch), cost) for arch in archs]
    one_round = nine[0] + nine[-1] + 6 * random
    assert 8 * sum(nine) / one_round == pytest.approx(times, abs=0.005)
    assert times == pytest.approx(paper_says, rel=0.06 if weights_alone else 0.01)
    assert one_round < 8 * nine[-1]  # App. E: less than federated averaging of the largest alone


@pytest.mark.parametrize("relu_before_sum", [False, True])
def test_a_block_by_hand(relu_before_sum: bool) -> None:
    """The second convolution's ReLU removes its negative outputs before the sum."""
    net = elastic(None, relu_before_sum=relu_before_sum)
    block, x = net.network.stages[1][1], torch.randn(2, 32, 4, 4)
    w = block.state_dict()
    residual = nn.functional.conv2d(x, w["block.conv1.weight"], padding=1).clamp(min=0)
    residual = nn.functional.conv2d(residual, w["block.conv2.weight"], padding=1)
    assert residual.min() < 0
    residual = residual.clamp(min=0) if relu_before_sum else residual
    torch.testing.assert_close(block(x), (x + residual).clamp(min=0))


test_invalid_architectures_are_refused = refusals(
    ("d: 0.5, e: 0.1", "depth 0.5"),
    ("d: 2, e: [0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.3]", "ratio 0.3"),
    ("d: [0,0,0], e: 0.1", "3 depths"),
    ("d: [0,0, e: 0.1", "cannot be read"),
    ({"d": 0}, "{'d': 0}"),
    call=lambda text: on_meta().space.parse(text),
)


def test_ways_to_write_an_architecture(paper: ElasticResNet) -> None:
    expected = ElasticArch((1, 1, 1, 1), (0.18,) * 12)
    for text in ("d: 1, e: 0.18", " d:[1,1,1,1],e: 0.18 ", {"d": [1] * 4, "e": [0.18] * 12}):
        assert paper.space.parse(text) == expected


def test_ratios_of_many_digits_are_read_as_written() -> None:
    space = ElasticSpace((0, 1), (1 / 3, 0.5), (24,), 1)
    for arch in (space.smallest, space.decode([1, 0, 1])):
        assert space.parse(str(arch)) == arch


test_settings_that_cannot_work = refusals(
    ({"depths": [1, 0]}, "supernet.depths"),
    ({"stem_width": 0}, "supernet.stem_width: 0 must be at least 1"),
    # the largest network has multiples of 8, a narrower one does not
    ({"norm": GroupNorm(8), "stem_width": 8}, "norm.group_size: 8 does not divide 4 channels"),
    call=lambda settings: elastic(**settings),
)


def test_group_norm_normalises_the_same_channels_in_every_width() -> None:
    """Groups have a fixed size: narrow and wide layers normalise the first channels alike."""
    x = torch.randn(2, 16, 3, 3)
    for channels in (4, 8, 12):
        torch.testing.assert_close(GroupNorm(4)(channels)(x[:, :channels]), GroupNorm(4)(16)(x)[:, :channels])


def test_middle_widths() -> None:
    """The nearest multiple (halves round up), at least the divisor, and one more if the loss exceeds 10 %."""
    for value, divisor in itertools.product(range(1, 80), (1, 4, 8)):
        multiples = [k * divisor for k in range(1, 100)]
        nearest = min(multiples, key=lambda width: (abs(width - value), -width))
        expected = nearest if nearest >= 0.9 * value else nearest + divisor
        assert ElasticSpace((0,), (1.0,), (value,), divisor).middle_width(value, 1.0) == expected


WIDE = {"width_multipliers": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], "norm": BatchNorm()}
# DeepFedNAS' published path: MACs, parameters, ratios, and widths as indices of multipliers
PUBLISHED = [
    (458237952, 8176266, ".18 .1 .1 .18 .14 .1 .14 .14 .1 .1 .1 .1", "9 4 4 4 4"),
    (558704640, 10008218, ".18 .14 .18 .14 .1 .1 .18 .14 .14 .14 .1 .14", "9 4 5 4 4"),
    (1203782672, 22633130, ".14 .1 .1 .1 .1 .1 .14 .14 .1 .14 .1 .1", "9 8 9 7 7"),
    (3403370496, 71726538, " ".join([".25"] * 12), "9 9 9 9 9"),
]


@pytest.mark.parametrize(("macs", "parameters", "ratios", "indices"), PUBLISHED)
def test_costs_of_the_published_path(macs: int, parameters: int, ratios: str, indices: str) -> None:
    net = on_meta(**WIDE)
    widths = tuple(WIDE["width_multipliers"][int(index)] for index in indices.split())
    arch = net.space.parse(ElasticArch((2,) * 4, tuple(map(float, ratios.split())), widths=widths))
    assert (net.macs(arch), net.cost(arch).parameters) == (macs, parameters)
    assert net.space.parse(str(arch)) == arch


def test_equal_widths_are_one_network() -> None:
    """The ratios .3 and .4, and .7 and .8, of 64 channels give the same multiple of 8."""
    space = on_meta(**WIDE).space
    assert space.widths_at(0) == [8, 16, 24, 32, 40, 48, 56, 64]
    narrower, wider = (ElasticArch((0,) * 4, (0.1,) * 12, widths=(stem, *[0.1] * 4)) for stem in (0.7, 0.8))
    assert space.parse(narrower) == space.parse(wider)
    assert str(space.parse(narrower)).endswith("w: [0.8,0.1,0.1,0.1,0.1]")
