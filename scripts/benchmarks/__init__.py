"""What the library costs and gains, beside a loop written by hand in plain PyTorch (``scripts/benchmark``)."""
