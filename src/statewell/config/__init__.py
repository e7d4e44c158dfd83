"""What a model and a run are: frozen dataclasses, checked when made, importing neither torch nor numpy.

Start reading at `layers.ModelConfig`; a mixer's spec (`mixers.py`) says what its memory costs (`memory.py`).
"""
