"""Generators of problems for the packaged tasks, with their answers and vocabulary."""
