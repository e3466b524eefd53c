"""Faster layers of clients' fits, against torch's own layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lit_fednas.federation.kernels import ImagesAsColumns, with_channels_last


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5), nn.Conv2d(8, 8, 3)]
    return nn.Sequential(*layers, nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3), nn.Flatten()).double()


def gradients(layers, inputs):
    torch.manual_seed(1)  # equal dropout masks
    outputs = layers(inputs)
    outputs.square().sum().backward()
    return [outputs.detach(), *(parameter.grad for parameter in layers.parameters())]


def test_channels_last_computes_the_same_with_the_same_masks():
    plain = network()
    inputs = torch.randn(4, 3, 12, 12, dtype=torch.float64)
    converted = with_channels_last(copy.deepcopy(plain))
    assert converted[0].weight.is_contiguous(memory_format=torch.channels_last)
    for expected, actual in zip(gradients(plain, inputs), gradients(converted, inputs), strict=True):
        torch.testing.assert_close(expected, actual, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("stride", "padding", "bias"), [(1, 0, True), (2, 1, False), ((2, 1), (0, 2), True)])
def test_images_as_columns_equals_a_convolution(stride, padding, bias):
    layer = nn.Conv2d(3, 5, (3, 2), stride, padding, bias=bias).double()
    inputs = torch.randn(4, 3, 9, 8, dtype=torch.float64)

    def results():
        outputs = layer(inputs)
        return outputs, *torch.autograd.grad(outputs.square().sum(), list(layer.parameters()))

    expected = results()
    with ImagesAsColumns():
        columns = results()
    assert columns[0].stride() != expected[0].stride()  # equal strides would mean that torch's convolution ran
    for actual, wanted_tensor in zip(columns, expected, strict=True):
        torch.testing.assert_close(actual, wanted_tensor, rtol=1e-10, atol=1e-10)
    with torch.autocast("cpu", torch.bfloat16), ImagesAsColumns():
        assert layer.float()(inputs.float()).dtype == torch.bfloat16
