"""Federated neural architecture search on PyTorch Lightning."""
