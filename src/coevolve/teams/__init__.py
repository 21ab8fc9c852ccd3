"""Trained teams: export, model cards, playing, chat and serving."""
