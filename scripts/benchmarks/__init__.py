"""Speed and memory of the library, compared with a hand-written PyTorch loop (``scripts/benchmark``)."""
