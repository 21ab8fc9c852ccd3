"""Code by one author or two, judged: what is code in an answer, how well it is built, and what of it passes."""

from coevolve.rewards.code.extract import extract
from coevolve.rewards.code.grade import AUX, MAIN, Grade, Job, grade

__all__ = ["AUX", "MAIN", "Grade", "Job", "extract", "grade"]
