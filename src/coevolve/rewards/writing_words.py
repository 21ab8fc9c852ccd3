"""The word lists of the writing reward: what carries no content, and what connects sentences."""

STOP_WORDS = frozenset(
    """
    a about above after again against all am an and any are as at be because been before being below between both but
    by can could did do does doing down during each few for from further had has have having he her here hers herself
    him himself his how i if in into is it its itself just me might more most must my myself no nor not now of off on
    once only or other our ours ourselves out over own same shall she should so some such than that the their theirs
    them themselves then there these they this those through to too under until up us very was we were what when where
    which while who whom why will with would you your yours yourself yourselves
    """.split()  # noqa: SIM905  (as a list it would be a page)
)
"""Words that a content-word comparison leaves out: articles, pronouns, prepositions, auxiliaries, conjunctions."""

TRANSITIONS: dict[str, tuple[str, ...]] = {
    "addition": (
        "furthermore", "moreover", "additionally", "also", "besides", "in addition", "as well as", "not only",
        "together with", "along with", "on top of",
    ),
    "examples": (
        "for example", "for instance", "such as", "including", "in particular", "particularly", "specifically",
        "especially", "namely", "notably", "mainly", "primarily", "to illustrate",
    ),
    "explanation": (
        "that is", "in other words", "in fact", "actually", "indeed", "clearly", "obviously", "basically",
        "essentially", "fundamentally", "to clarify", "simply put",
    ),
    "cause": (
        "so", "therefore", "thus", "hence", "then", "consequently", "accordingly", "as a result", "thereby",
        "for this reason", "because of this", "due to this", "this leads to", "owing to", "thanks to",
    ),
    "contrast": (
        "but", "however", "yet", "still", "while", "whereas", "although", "instead", "rather", "otherwise",
        "nevertheless", "nonetheless", "conversely", "by contrast", "in contrast", "on the other hand",
        "on the contrary", "regardless",
    ),
    "order": (
        "first", "second", "third", "next", "then", "finally", "lastly", "initially", "later", "meanwhile",
        "subsequently", "afterward", "to begin with", "in the end", "ultimately", "at the same time",
    ),
    "emphasis": (
        "indeed", "certainly", "surely", "definitely", "absolutely", "undoubtedly", "of course", "naturally",
        "obviously", "clearly", "evidently", "in fact", "significantly", "notably", "granted",
    ),
    "summary": (
        "in summary", "in conclusion", "to conclude", "to sum up", "to summarize", "in short", "in brief", "briefly",
        "overall", "on the whole", "all in all", "after all", "ultimately", "in the end", "essentially", "basically",
    ),
    "comparison": (
        "similarly", "likewise", "equally", "just as", "just like", "much like", "as with", "in the same way",
        "in comparison", "comparable to", "by analogy",
    ),
    "concession": (
        "though", "although", "even though", "despite", "in spite of", "while", "whereas", "even if", "regardless of",
        "admittedly", "granted", "nevertheless", "nonetheless", "however", "yet", "still",
    ),
    "condition": (
        "if", "unless", "provided that", "given that", "assuming that", "as long as", "in case", "otherwise",
        "or else", "should", "were", "had",
    ),
    "time": (
        "as", "when", "while", "after", "before", "until", "since", "during", "later", "earlier", "previously",
        "recently", "currently", "eventually", "finally", "meanwhile", "immediately", "nowadays",
    ),
}  # fmt: skip
"""Category -> phrases, found as substrings: "so" is in "also" and "as" in "was". Some phrases are in several."""
