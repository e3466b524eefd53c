"""Data sources, with one module per kind of file."""
