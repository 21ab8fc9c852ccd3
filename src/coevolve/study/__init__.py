"""The study of the two papers' claims, each decided by a fixed rule: ``coevolve reproduce``.

    claims.yaml ──> claims ──> run (sweeps, one JSON a run) ──> results/<arm>/<seed>.json ──> verdicts ──> page

``claims`` defines what is compared, before anything runs; ``run`` trains the runs that have no result yet;
``measures`` turns a result into a number; ``verdicts`` is the decision rule; ``page`` is a pure function of claims and
results.
"""
