"""Grading of code by one author or two: extraction from an answer, structure, syntax, tests and cooperation."""

from coevolve.rewards.code.extract import extract
from coevolve.rewards.code.grade import AUX, MAIN, Grade, Job, grade

__all__ = ["AUX", "MAIN", "Grade", "Job", "extract", "grade"]
