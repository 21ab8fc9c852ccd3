"""The page of a report: ``build`` puts it together, and what runs in the browser is in ``web``."""
