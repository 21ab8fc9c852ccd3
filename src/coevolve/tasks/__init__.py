"""One file per task. ``TASKS`` is what a recipe may name; a user's own is an object or ``file.py:Name``."""

from coevolve.tasks.imdb import Imdb
from coevolve.tasks.sentiment import Sentiment

TASKS = {"sentiment": Sentiment, "imdb": Imdb}

__all__ = ["TASKS", "Imdb", "Sentiment"]
