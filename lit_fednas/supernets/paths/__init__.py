"""Supernets of operators: every layer has several, and a path runs one per layer (FedorAS)."""
