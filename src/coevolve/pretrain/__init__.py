"""Small models trained from scratch, for runs that must not wait for a download."""

from coevolve.pretrain.run import main as pretrain

__all__ = ["pretrain"]
