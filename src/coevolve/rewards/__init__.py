"""Scoring that tasks share."""
