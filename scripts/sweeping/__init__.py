"""What ``scripts/sweep`` is made of: combinations, the command of each, and the runs."""
