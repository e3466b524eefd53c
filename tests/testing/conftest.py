"""Only ``test_testing.py`` runs the files of an author outside the package, in another folder."""

collect_ignore = ["own_suite.py", "broken_suite.py"]
