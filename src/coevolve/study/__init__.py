"""The two papers' claims, decided by rule: ``coevolve reproduce``.

    claims.yaml ──> claims ──> run (sweeps, one JSON a run) ──> results/<arm>/<seed>.json ──> verdicts ──> page

``claims`` says what is compared, before anything runs; ``run`` trains what has no result yet; ``measures`` makes a
number of a result; ``verdicts`` is the rule; ``page`` is a pure function of claims and results.
"""
