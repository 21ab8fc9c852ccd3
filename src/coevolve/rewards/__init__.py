"""Reward functions and scorers that the tasks share."""
