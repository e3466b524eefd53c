"""Where examples come from: one module per kind of file."""
