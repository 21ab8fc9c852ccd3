"""What is noted of a model, to tell later whether it is still the same."""

from __future__ import annotations

import torch

from coevolve.models.exact import beginnings


def test_first_rows_tell_a_model_in_any_dtype_and_under_any_names() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    said = beginnings({"a": x, "b": x[1:]})
    assert said == beginnings({"c": x[1:].bfloat16(), "d": x.bfloat16(), "tied": x, "ids": torch.arange(3)})
    assert said != beginnings({"a": x * 1.25, "b": x[1:]})
    assert said == beginnings({"a": torch.cat([x[:1], x[:2]]), "b": x[1:]})  # later rows are not looked at
    assert beginnings({"a": x.requires_grad_(False).flatten()}) != said
