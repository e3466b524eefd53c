"""Networks of repeated cells, and the supernet with all operators of a cell (DARTS)."""
