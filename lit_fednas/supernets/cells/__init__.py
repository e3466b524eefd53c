"""Networks of repeated cells, and the supernet that mixes all operators of a cell (DARTS)."""
