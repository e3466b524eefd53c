"""The cells that growable networks are made of."""

from lit_fednas.supernets.growing.cells.base import Cell
from lit_fednas.supernets.growing.cells.conv import ConvCell
from lit_fednas.supernets.growing.cells.entry import EntryCell
from lit_fednas.supernets.growing.cells.heads import PooledHead
from lit_fednas.supernets.growing.cells.inverted_residual import InvertedResidualCell, PerceptronHead
from lit_fednas.supernets.growing.cells.linear import LinearCell, LinearHead
from lit_fednas.supernets.growing.cells.nasbench201 import NASBench201Cell
from lit_fednas.supernets.growing.cells.preactivated import PreactivatedCell, PreactivatedHead
from lit_fednas.supernets.growing.cells.residual import ResidualCell
from lit_fednas.supernets.growing.cells.transformer import PatchCell, TokenHead, TransformerCell

__all__ = [
    "Cell",
    "ConvCell",
    "EntryCell",
    "InvertedResidualCell",
    "LinearCell",
    "LinearHead",
    "NASBench201Cell",
    "PatchCell",
    "PerceptronHead",
    "PooledHead",
    "PreactivatedCell",
    "PreactivatedHead",
    "ResidualCell",
    "TokenHead",
    "TransformerCell",
]
