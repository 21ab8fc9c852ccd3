"""Small models trained from scratch, for runs that must not wait for a download."""

from coevolve.pretrain.run import check_resume
from coevolve.pretrain.run import main as pretrain

__all__ = ["check_resume", "pretrain"]
