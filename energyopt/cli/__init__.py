"""The command line: one verb a module."""
