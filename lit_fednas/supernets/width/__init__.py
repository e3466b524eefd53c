"""Networks that are cut in width."""
