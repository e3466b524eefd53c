"""Supernets of operators: every layer holds several, and a path runs one of each (FedorAS)."""
