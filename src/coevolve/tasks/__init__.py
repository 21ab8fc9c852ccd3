"""The packaged tasks, one file each. ``TASKS`` maps names for recipes to classes; a user's own task is named as
``file.py:Name`` or given as an object."""

from coevolve.tasks.arithmetic import Arithmetic
from coevolve.tasks.arxiv import Arxiv
from coevolve.tasks.checkable import Checkable
from coevolve.tasks.coophumaneval import CoopHumanEval
from coevolve.tasks.games import Game
from coevolve.tasks.gsm8k import Gsm8k
from coevolve.tasks.humaneval import HumanEval
from coevolve.tasks.imdb import Imdb
from coevolve.tasks.mawps import Mawps
from coevolve.tasks.mbpp import Mbpp
from coevolve.tasks.mini_coop import MiniCoop
from coevolve.tasks.pettingzoo import PettingZoo
from coevolve.tasks.rows import Rows
from coevolve.tasks.sentiment import Sentiment
from coevolve.tasks.svamp import Svamp
from coevolve.tasks.tldr import Tldr
from coevolve.tasks.verifiers import Verifiers
from coevolve.tasks.writing_mini import WritingMini

TASKS = {
    "sentiment": Sentiment,
    "imdb": Imdb,
    "tldr": Tldr,
    "arxiv": Arxiv,
    "writing-mini": WritingMini,
    "humaneval": HumanEval,
    "coophumaneval": CoopHumanEval,
    "mbpp": Mbpp,
    "mini-coop": MiniCoop,
    "arithmetic": Arithmetic,
    "checkable": Checkable,
    "gsm8k": Gsm8k,
    "svamp": Svamp,
    "mawps": Mawps,
    "game": Game,
    "rows": Rows,
    "pettingzoo": PettingZoo,
    "verifiers": Verifiers,
}

__all__ = [
    "TASKS",
    "Arithmetic",
    "Arxiv",
    "Checkable",
    "CoopHumanEval",
    "Game",
    "Gsm8k",
    "HumanEval",
    "Imdb",
    "Mawps",
    "Mbpp",
    "MiniCoop",
    "PettingZoo",
    "Rows",
    "Sentiment",
    "Svamp",
    "Tldr",
    "Verifiers",
    "WritingMini",
]
