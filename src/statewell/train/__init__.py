"""Training from text to a run folder. Start at `run.py` (`train`), then `loop.py` (one step).

Owns the corpus, the batches, the loss, the optimiser, the state a run resumes from and its lock. Progress
leaves as events (`events.py`); nothing here draws on a terminal.
"""
