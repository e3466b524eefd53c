"""Federated neural architecture search on PyTorch Lightning."""

import os

# OpenMP's threads spin while they wait, which costs a factor of five and more as soon as another process wants
# the same cores. It reads this once, when torch is imported; who has set it keeps his setting.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
