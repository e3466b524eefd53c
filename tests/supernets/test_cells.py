"""Every kind of cell, in a small network: as it grows it computes the same, and what is inserted can learn."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.costs import count_macs
from lit_fednas.errors import ConfigError
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import BatchNorm, GroupNorm, Norm
from lit_fednas.supernets.growing.blueprint import Blueprint, CellNetwork
from lit_fednas.supernets.growing.cells import (
    Cell,
    ConvCell,
    EntryCell,
    PooledHead,
    PreactivatedCell,
    ResidualCell,
    ResidualConvCell,
)
from lit_fednas.supernets.growing.growth import Deepen, NewUnits, Step, Widen, carried_over, grown, plan
from lit_fednas.supernets.growing.mobilenet import InvertedResidualCell, PerceptronHead
from lit_fednas.supernets.growing.nasbench201 import Genotype, NASBench201Cell
from lit_fednas.supernets.growing.perceptron import LinearCell, LinearHead
from lit_fednas.supernets.growing.vit import PatchCell, TokenHead, TransformerCell

INPUT = (3, 6, 6)
CLASSES = 5
NORMS = {"batch": BatchNorm(), "batch-static": BatchNorm(running_statistics=False), "group": GroupNorm(2)}
GENOTYPES = {
    "chain": "|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|",
    "dense": "|nor_conv_3x3~0|+|nor_conv_1x1~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_1x1~1|nor_conv_3x3~2|",
    "tied": "|nor_conv_3x3~0|+|none~0|avg_pool_3x3~1|+|skip_connect~0|none~1|nor_conv_1x1~2|",
    "two-skips": "|skip_connect~0|+|nor_conv_3x3~0|nor_conv_1x1~1|+|none~0|skip_connect~1|nor_conv_3x3~2|",
    "pooled-branch": "|avg_pool_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_3x3~1|none~2|",
    "silent-middle": "|none~0|+|nor_conv_3x3~0|nor_conv_1x1~1|+|skip_connect~0|nor_conv_3x3~1|skip_connect~2|",
}


def network(*cells: Cell, **sizes: int) -> Blueprint:
    groups = {name.replace("__", "."): size for name, size in sizes.items()}
    multiple = max(getattr(getattr(cell, "norm", None), "multiple", 1) for cell in cells)
    return Blueprint(cells, groups, INPUT[0], CLASSES, multiple)


def inverted(norm: Norm, **settings: object) -> Blueprint:
    cell = InvertedResidualCell("it", norm, expansion=4.0, **settings)  # type: ignore[arg-type]
    entry = EntryCell("entry", norm, InvertedResidualCell("", norm, 1.0), hardswish=True)
    sizes = {"hidden": 8, "squeeze": 4, "out": 6}
    groups = [*cell.hidden, *(["out"] if cell.opens else [])]
    units = {f"it__{group}": sizes[group] for group in groups}
    return network(entry, cell, PerceptronHead("head"), entry__out=4, head__units=8, **units)


def nasbench(norm: Norm, genotype: str) -> Blueprint:
    cell = NASBench201Cell("it", norm, GENOTYPES[genotype])
    entry = EntryCell("entry", norm, PreactivatedCell("", norm))
    return network(entry, cell, PooledHead("head", norm), entry__out=4, **{f"it__{g}": 6 for g in cell.hidden})


#: For every kind of cell: a network in which it is named ``it``, for a norm.
KINDS: dict[str, Callable[[Norm], Blueprint]] = {
    "conv": lambda norm: network(
        ConvCell("entry", norm=norm),
        ConvCell("it", norm=norm, pool=2),
        PooledHead("head"),
        entry__out=4,
        it__out=6,
    ),
    "residual-conv": lambda norm: network(
        ConvCell("entry", norm=norm), ResidualConvCell("it", norm), PooledHead("head"), entry__out=4
    ),
    "entry": lambda norm: network(
        EntryCell("it", norm, PreactivatedCell("", norm), stride=2), PooledHead("head", norm), it__out=4
    ),
    "residual": lambda norm: network(
        ConvCell("entry", norm=norm), ResidualCell("it", norm), PooledHead("head"), entry__out=4, it__hidden=6
    ),
    "residual-opens": lambda norm: network(
        ConvCell("entry", norm=norm),
        ResidualCell("it", norm, projection=True),
        PooledHead("head"),
        entry__out=4,
        it__hidden=6,
        it__out=4,  # as many as come in: that it projects cannot be seen from its widths
    ),
    "preactivated": lambda norm: network(
        EntryCell("entry", norm, PreactivatedCell("", norm)),
        PreactivatedCell("it", norm),
        PooledHead("head", norm),
        entry__out=4,
        it__hidden=6,
    ),
    "preactivated-opens": lambda norm: network(
        EntryCell("entry", norm, PreactivatedCell("", norm)),
        PreactivatedCell("it", norm, projection=True, stride=2),
        PooledHead("head", norm),
        entry__out=4,
        it__hidden=6,
        it__out=4,
    ),
    **{f"nasbench-{name}": functools.partial(lambda norm, name: nasbench(norm, name), name=name) for name in GENOTYPES},
    "inverted": lambda norm: inverted(norm, squeezes=True, hardswish=True, kernel=5),
    "inverted-relu": lambda norm: inverted(norm),
    "inverted-opens": lambda norm: inverted(norm, residual=False, stride=2, squeezes=True),
    "inverted-no-expansion": lambda norm: inverted(norm, residual=False, expands=False, squeezes=True),
    "linear": lambda norm: network(
        LinearCell("entry", entries=prod(INPUT)), LinearCell("it"), LinearHead("head"), entry__out=8, it__out=6
    ),
    "transformer": lambda norm: network(
        PatchCell("entry", 3, 4),
        TransformerCell("it", 3, 1.5),
        TokenHead("head"),
        entry__out=6,
        it__heads=2,
        it__units=9,
    ),
}
WITHOUT_NORM = {"linear", "transformer"}
STATIC = {"conv", "residual-opens", "inverted"}
CASES = [
    *(pytest.param(kind, "batch", id=f"{kind}-batch") for kind in KINDS),
    *(pytest.param(kind, "batch-static", id=f"{kind}-batch-static") for kind in sorted(STATIC)),
    *(pytest.param(kind, "group", id=f"{kind}-group") for kind in KINDS if kind not in WITHOUT_NORM),
]


def drawn(blueprint: Blueprint) -> CellNetwork:
    """A network in float64 whose tensors are all random, so that no scale is 1 and no shift 0."""
    net = blueprint.build().double()
    draws = generator(0, "weights")
    for tensor in [*net.parameters(), *net.buffers()]:
        if tensor.is_floating_point():
            spread = torch.rand(tensor.shape, generator=draws, dtype=tensor.dtype)
            with torch.no_grad():
                tensor.copy_(spread + 0.5 if tensor.dim() == 1 else (2 * spread - 1) / max(1, tensor[0].numel()) ** 0.5)
    return net


def images(count: int = 7) -> Tensor:
    return torch.randn(count, *INPUT, generator=generator(0, "images"), dtype=torch.float64)


def after(
    net: CellNetwork, blueprint: Blueprint, steps: tuple[Step, ...], new_units: NewUnits = "drawn"
) -> tuple[CellNetwork, Blueprint]:
    draws = generator(0, "transformation")
    with isolated(0, "inserted"):
        for step in steps:
            net = carried_over(net, blueprint, step, draws, 0.3, new_units)
            blueprint = grown(blueprint, step)
    return net, blueprint


def assert_same_function(one: nn.Module, other: nn.Module) -> None:
    for training in (True, False):
        one.train(training), other.train(training)
        x = images()
        with torch.no_grad():
            torch.testing.assert_close(copy.deepcopy(other)(x), copy.deepcopy(one)(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("kind", "norm"), CASES)
class TestGrowth:
    @pytest.mark.parametrize(("factor", "new_units"), [(2.0, "drawn"), (1.5, "drawn"), (1.5, "copies")])
    def test_widening_keeps_the_function(self, kind: str, norm: str, factor: float, new_units: NewUnits) -> None:
        blueprint = KINDS[kind](NORMS[norm])
        net = drawn(blueprint)
        steps = plan(blueprint, ["it"], 1, factor, order="widen")
        wider, structure = after(net, blueprint, steps, new_units)
        assert [type(step) for step in steps] == [Widen]
        assert structure.parameters()["it"] > blueprint.parameters()["it"]
        assert_same_function(net, wider)

    @pytest.mark.parametrize("insert", [1, 2])
    def test_deepening_keeps_the_function(self, kind: str, norm: str, insert: int) -> None:
        blueprint = KINDS[kind](NORMS[norm])
        net = drawn(blueprint)
        steps = plan(blueprint, ["it"], 1, insert=insert, order="deepen")
        deeper, structure = after(net, blueprint, steps)
        assert [type(step) for step in steps] == [Deepen]
        assert len(structure.cells) == len(blueprint.cells) + insert
        assert_same_function(net, deeper)

    def test_what_is_inserted_can_learn(self, kind: str, norm: str) -> None:
        blueprint = KINDS[kind](NORMS[norm])
        deeper, _ = after(drawn(blueprint), blueprint, plan(blueprint, ["it"], 1, order="deepen"))
        deeper.train()
        inserted = deeper.cells["it_m1"]
        moving = torch.optim.SGD(deeper.parameters(), lr=0.1)
        labels = torch.arange(7) % CLASSES
        reached: set[str] = set()
        for step in range(4):
            moving.zero_grad()
            functional.cross_entropy(deeper(images()), labels).backward()
            for name, parameter in inserted.named_parameters():
                assert parameter.grad is not None
                if parameter.grad.abs().max() > 1e-12:
                    reached.add(name)
            assert reached, f"no gradient in step {step}"
            moving.step()
        # not all shifts: a batch norm behind takes them away, and no attention weight depends on the keys' bias
        weights = {name for name, _ in inserted.named_parameters() if name.endswith("weight")}
        assert weights <= reached


@pytest.mark.parametrize("kind", KINDS)
def test_new_units_are_used(kind: str) -> None:
    """After a few steps units have gradients, what they take in as well as what is taken from them."""
    blueprint = KINDS[kind](BatchNorm())
    net = drawn(blueprint)
    wider, _ = after(net, blueprint, plan(blueprint, ["it"], 1, order="widen"))
    wider.train()
    moving = torch.optim.SGD(wider.parameters(), lr=0.1)
    reached = {name: torch.zeros_like(one) for name, one in wider.named_parameters() if one.dim() > 1}
    for _ in range(3):
        moving.zero_grad()
        functional.cross_entropy(wider(images()), torch.arange(7) % CLASSES).backward()
        for name, seen in reached.items():
            gradient = wider.get_parameter(name).grad
            assert gradient is not None
            seen += gradient.abs()
        moving.step()
    for name, seen in reached.items():
        if "squeeze" in name:
            continue  # behind a mean over all pixels a ReLU may be dead for every image
        for dimension in (0, 1):
            others = tuple(one for one in range(seen.dim()) if one != dimension)
            alive = 0.7 if kind == "linear" else 0.9  # a unit whose ReLU is 0 for all seven images gets no gradient
            assert (seen.amax(others) > 1e-12).double().mean() > alive, (name, dimension)


@pytest.mark.parametrize("kind", KINDS)
def test_growing_again_and_again_keeps_the_function(kind: str) -> None:
    blueprint = KINDS[kind](BatchNorm())
    net = first = drawn(blueprint)
    for number, cells in enumerate([["it"], ["it"], ["it", "it_m2"], ["entry", "it"]], start=1):
        net, blueprint = after(net, blueprint, plan(blueprint, cells, number, 1.5))
    assert len(blueprint.cells) >= len(KINDS[kind](BatchNorm()).cells) + 2
    assert_same_function(first, net)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - WITHOUT_NORM))
def test_a_training_pass_moves_the_statistics_of_copies_alike(kind: str) -> None:
    blueprint = KINDS[kind](BatchNorm())
    net = drawn(blueprint)
    cells = [cell.name for cell in blueprint.cells[:-1]]
    made, _ = after(net, blueprint, plan(blueprint, cells, 1, 1.5, order="widen"), "copies")
    for one in (net, made):
        one.train()(images())
    buffers = dict(made.named_buffers())
    for name, mean in net.named_buffers():
        if not name.endswith("running_mean"):
            continue
        other = name.replace("running_mean", "running_var")
        before = torch.stack([mean, net.get_buffer(other)])
        now = torch.stack([buffers[name], buffers[other]])
        torch.testing.assert_close(now[:, : mean.numel()], before, rtol=1e-10, atol=1e-10)
        apart = (now[:, :, None] - before[:, None, :]).abs().amax(0).amin(1)
        assert apart.max() < 1e-10, name


@pytest.mark.parametrize("kind", sorted(set(KINDS) - WITHOUT_NORM))
def test_kinds_with_group_norm_grow_by_whole_groups(kind: str) -> None:
    blueprint = KINDS[kind](GroupNorm(2))
    for step in plan(blueprint, ["it"], 1, 1.3, order="widen"):
        assert isinstance(step, Widen)
        assert all(size % 2 == 0 for size in step.sizes.values())


def test_what_widens_with_a_cell() -> None:
    def groups(kind: str) -> tuple[str, ...]:
        return KINDS[kind](BatchNorm()).grown_with("it")

    assert groups("conv") == ("it.out",)
    assert groups("residual") == groups("preactivated") == ("it.hidden",)
    assert groups("residual-opens") == groups("preactivated-opens") == ("it.hidden", "it.out")
    assert groups("inverted") == ("it.hidden", "it.squeeze")
    assert groups("inverted-relu") == ("it.hidden",)
    assert groups("inverted-opens") == ("it.hidden", "it.squeeze", "it.out", "head.units")  # the head's with its input
    assert groups("inverted-no-expansion") == ("it.squeeze", "it.out", "head.units")
    assert groups("linear") == ("it.out",)
    assert groups("transformer") == ("it.heads", "it.units")
    assert groups("nasbench-chain") == ("it.node1",)
    assert groups("nasbench-dense") == ("it.node1", "it.node2")
    assert groups("nasbench-tied") == ("it.node1",)
    assert groups("nasbench-two-skips") == ("it.node2",)
    assert groups("nasbench-pooled-branch") == ("entry.out",)  # all its nodes are on the stream
    assert KINDS["transformer"](BatchNorm()).grown_with("entry") == ()
    assert not PatchCell("a", 2, 4).stream_grows


class TestFollowers:
    def test_an_inserted_cell_is_one_that_keeps_the_stream(self) -> None:
        norm = BatchNorm()
        assert ResidualCell("a", norm, projection=True, stride=2).follower("b") == ResidualCell("b", norm)
        assert PreactivatedCell("a", norm, projection=True, stride=2).follower("b") == PreactivatedCell("b", norm)
        opens = InvertedResidualCell(
            "a", norm, 2.0, 5, stride=2, residual=False, expands=False, squeezes=True, hardswish=True
        )
        assert opens.follower("b") == InvertedResidualCell("b", norm, 2.0, 5, squeezes=True, hardswish=True)
        assert EntryCell("a", norm, ResidualCell("", norm)).follower("b") == ResidualCell("b", norm)

    def test_hidden_units_with_which_a_cell_is_inserted(self) -> None:
        assert ResidualCell("a", BatchNorm()).fresh_hidden(12) == {"hidden": 12}
        assert PreactivatedCell("a", BatchNorm()).fresh_hidden(12) == {"hidden": 12}
        assert TransformerCell("a", head_dim=3, mlp_ratio=1.5).fresh_hidden(12) == {
            "heads": 4,
            "units": 18,
        }
        inverted_cell = InvertedResidualCell("a", BatchNorm(), 2.5, squeezes=True)
        assert inverted_cell.fresh_hidden(8) == {"hidden": 20, "squeeze": 5}
        in_groups = InvertedResidualCell("a", GroupNorm(8), 2.5, squeezes=True)
        assert in_groups.fresh_hidden(8) == {"hidden": 24, "squeeze": 8}
        assert NASBench201Cell("a", BatchNorm(), GENOTYPES["dense"]).fresh_hidden(8) == {"node1": 8, "node2": 8}

    def test_heads_and_patches_are_not_transformed(self) -> None:
        last = [
            PooledHead("a"),
            TokenHead("a"),
            PooledHead("a", BatchNorm()),
            PerceptronHead("a"),
            PatchCell("a", 2, 4),
            LinearHead("a"),
        ]
        assert not any(cell.growable for cell in last)


class TestNASBench201Cell:
    """Against the benchmark's definition, node by node."""

    def test_nodes_add_up_what_they_get(self) -> None:
        cell = NASBench201Cell("a", BatchNorm(), GENOTYPES["dense"])
        module = cell.build(4, 4, {"node1": 6, "node2": 8}).double().eval()
        conv = dict(module.get_submodule("edges").named_children())
        assert [conv[name].conv.kernel_size[0] for name in sorted(conv)] == [3, 1, 3, 1, 3]
        x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
        one = conv["edge01"](x)
        two = conv["edge02"](x) + conv["edge12"](one)
        torch.testing.assert_close(module(x), x + conv["edge13"](one) + conv["edge23"](two))

    def test_an_edge_is_relu_convolution_norm(self) -> None:
        module = NASBench201Cell("a", BatchNorm(), GENOTYPES["chain"]).build(4, 4, {"node1": 6})
        edge = module.get_submodule("edges.edge01")
        assert [type(part) for part in edge.children()] == [nn.ReLU, nn.Conv2d, nn.BatchNorm2d]

    def test_pooling_leaves_the_border_out_of_the_mean(self) -> None:
        genotype = GENOTYPES["pooled-branch"]
        module = NASBench201Cell("a", BatchNorm(), genotype).build(2, 2, {}).eval()
        x = torch.arange(18.0).view(1, 2, 3, 3)
        pooled = torch.tensor([[2.0, 2.5, 3.0], [3.5, 4.0, 4.5], [5.0, 5.5, 6.0]])
        pooled = torch.stack([pooled, pooled + 9])[None]
        torch.testing.assert_close(module(x), x + module.get_submodule("edges.edge13")(pooled))

    def test_dead_edges_have_no_weights(self) -> None:
        living = Genotype(GENOTYPES["silent-middle"]).living
        assert living == {(0, 2): "nor_conv_3x3", (0, 3): "skip_connect", (2, 3): "skip_connect"}

    def test_only_the_last_convolutions_are_silenced(self) -> None:
        assert Genotype(GENOTYPES["dense"]).last_convolutions == ((1, 3), (2, 3))
        assert Genotype(GENOTYPES["tied"]).last_convolutions == ((2, 3),)
        assert Genotype(GENOTYPES["two-skips"]).last_convolutions == ((2, 3),)
        assert Genotype(GENOTYPES["silent-middle"]).last_convolutions == ((0, 2),)

    @pytest.mark.parametrize(
        ("genotype", "words"),
        [
            ("|skip_connect~0|+|none~0|none~1|+|skip_connect~0|skip_connect~1|nor_conv_3x3~2|", "has 2 paths"),
            ("|nor_conv_3x3~0|+|none~0|none~1|+|none~0|nor_conv_3x3~1|none~2|", "has 0 paths"),
            ("|nor_conv_3x3~0|+|none~0|none~1|+|avg_pool_3x3~0|nor_conv_3x3~1|none~2|", "of skips alone"),
            ("|avg_pool_3x3~0|+|none~0|none~1|+|skip_connect~0|avg_pool_3x3~1|nor_conv_3x3~2|", "has 2 paths"),
            ("|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|none~1|none~2|", "no convolution"),
            ("|conv~0|+|none~0|none~1|+|skip_connect~0|none~1|none~2|", "'conv~0'"),
            ("|none~1|+|none~0|none~1|+|skip_connect~0|none~1|none~2|", "'none~1'"),
            ("|none~0|+|none~0|+|skip_connect~0|none~1|none~2|", "cannot be read"),
            ("|none~0|none~1|+|none~0|none~1|+|skip_connect~0|none~1|none~2|", "cannot be read"),
            ("|none~0|+|none~0|none~1|", "cannot be read"),
            ("", "cannot be read"),
        ],
    )
    def test_genotypes_that_are_refused(self, genotype: str, words: str) -> None:
        with pytest.raises(ConfigError, match="genotype: ") as told:
            NASBench201Cell("a", BatchNorm(), genotype)
        assert words in str(told.value)


def test_a_residual_block_is_that_of_the_paper() -> None:
    """He et al. (2016), Fig. 2 and equation 2."""
    block = ResidualCell("a", BatchNorm(), projection=True, stride=2).build(4, 6, {"hidden": 8}).double().eval()
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    layers, (conv, norm) = block.block, block.shortcut
    inner = functional.relu(layers.norm1(functional.conv2d(x, layers.conv1.weight, stride=2, padding=1)))
    y = layers.norm2(functional.conv2d(inner, layers.conv2.weight, padding=1))
    expected = functional.relu(y + norm(functional.conv2d(x, conv.weight, stride=2)))
    torch.testing.assert_close(block(x), expected)


def test_a_preactivated_block_is_that_of_the_benchmark() -> None:
    """Dong & Yang (2020), section 2.1: the shortcut is a 2x2 average pooling of stride 2 and a 1x1 convolution."""
    block = PreactivatedCell("a", BatchNorm(), projection=True, stride=2).build(4, 6, {"hidden": 8}).double().eval()
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    first, second = block.block.first, block.block.second
    inner = first.norm(functional.conv2d(functional.relu(x), first.conv.weight, stride=2, padding=1))
    y = second.norm(functional.conv2d(functional.relu(inner), second.conv.weight, padding=1))
    pooled = x.view(2, 4, 3, 2, 3, 2).mean((3, 5))
    torch.testing.assert_close(block(x), y + functional.conv2d(pooled, block.shortcut.conv.weight))


def test_odd_sizes_are_halved_alike_in_both_ways() -> None:
    block = PreactivatedCell("a", BatchNorm(), projection=True, stride=2).build(2, 2, {"hidden": 2})
    assert block(torch.zeros(2, 2, 7, 5)).shape == (2, 2, 4, 3)


def test_attention_adds_its_products_to_the_macs() -> None:
    module = TransformerCell("a", head_dim=3, mlp_ratio=2.0).build(12, 12, {"heads": 4, "units": 24})
    # for each of 4 heads: 5x5 products of queries and keys of 3 entries, and 5x5 weights on values of 3 entries
    products = 4 * (5 * 5 * 3 + 5 * 5 * 3)
    assert count_macs(module, (5, 12)) == 5 * (4 * 12 * 12 + 2 * 12 * 24) + products


@pytest.mark.parametrize("norm", [BatchNorm(affine=False), None], ids=["not-affine", "none"])
@pytest.mark.parametrize(
    "cell",
    [
        lambda norm: ResidualCell("a", norm),
        lambda norm: PreactivatedCell("a", norm),
        lambda norm: NASBench201Cell("a", norm, GENOTYPES["chain"]),
        lambda norm: InvertedResidualCell("a", norm, 2.0),
    ],
)
def test_residual_cells_need_a_norm_with_a_scale(cell: Callable[[Norm | None], Cell], norm: Norm | None) -> None:
    with pytest.raises(ConfigError, match=r"supernet\.family\.norm: .* affine: true"):
        cell(norm)


def test_a_cell_with_a_stride_cannot_keep_the_stream() -> None:
    makes: list[Callable[[], Cell]] = [
        lambda: ResidualCell("a", BatchNorm(), stride=2),
        lambda: PreactivatedCell("a", BatchNorm(), stride=2),
        lambda: InvertedResidualCell("a", BatchNorm(), 2.0, stride=2),
    ]
    for make in makes:
        with pytest.raises(ConfigError, match="cell a has stride 2"):
            make()
