"""Trained teams for others: export, cards, play and chat."""
