"""Pictures of data and of answers, painted with matplotlib, which is imported late.

The paper's own figures are in `safeset.paper.drawing`.
"""
