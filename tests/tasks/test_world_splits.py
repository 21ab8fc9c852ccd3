"""The splits of generated problems stay: packaged models are pre-trained on one, and runs that are compared share
another."""

from __future__ import annotations

import pytest

from coevolve.tasks.worlds.split import Split, split_of


@pytest.mark.parametrize(
    ("key", "split"),
    [
        ("film|on television", "test"),
        ("subset 10, 14, 4: 14", "test"),
        ("negate|square", "train"),
        ("multiply by 2|negate", "train"),
        ("add 3", "pretrain"),
        ("square 15, 23, 3: 9", "pretrain"),
    ],
)
def test_a_key_keeps_its_split(key: str, split: Split) -> None:
    assert split_of(key) == split
