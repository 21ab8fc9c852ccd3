"""Waiting for a page. Playwright's own waiting evaluates text in the page, which our pages forbid."""

import time

PATIENCE = 60.0  # seconds; a test that gets there is broken


def until(tab, expression, arg=None):
    """Returns once this JavaScript is true, a function of ``arg`` or a plain expression."""
    end = time.monotonic() + PATIENCE
    while not tab.evaluate(expression, arg):
        assert time.monotonic() < end, f"not within {PATIENCE:.0f} s: {expression}"
        tab.wait_for_timeout(50)
