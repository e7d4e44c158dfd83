"""Comparisons: train several architectures on the same bytes, measure what each costs, and draw the report.

Owns what is measured around a model and how it is shown. Never trains by itself: a run is
`statewell.train`'s. Start reading in compare.py; report.py and what it imports need no torch.
"""
