"""What makes the clients' training faster with the same results: layouts, stacking, compilation, and their choice."""
