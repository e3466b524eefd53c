"""What an author outside the package writes is run by ``test_testing.py`` alone, in a folder of its own."""

collect_ignore = ["own_suite.py", "broken_suite.py"]
