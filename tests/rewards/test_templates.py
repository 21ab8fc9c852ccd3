"""The names that templates have in braces."""

from __future__ import annotations

import pytest

from coevolve.rewards.templates import columns_in


def test_columns_are_told_once_in_the_order_of_the_templates() -> None:
    assert columns_in({"one": "{b} {told}{a}", "two": "{{no}} {a} {c}"}, ("told",)) == ("b", "a", "c")


@pytest.mark.parametrize("template", ["{text.x}", "{text!r}", "{}", "{0}", "{text"])
def test_a_voice_that_is_no_template_is_refused_before_it_speaks(template: str) -> None:
    with pytest.raises(ValueError, match=r"^voices\.main\.again: .*; want "):
        columns_in({"voices.main.first": "{text}", "voices.main.again": template}, ("told",))
