"""The page of a report: ``build`` assembles it, and ``web`` has the files that run in the browser."""
