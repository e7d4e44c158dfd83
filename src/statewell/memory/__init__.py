"""What a layer remembers at run time: four matrix memories (`matrix.py`), two that grow (`tokens.py`), and a model's
whole
(`model.py`). Every one forgets, writes and reads; where the bytes live is `store.py`'s, how rows map is
`segments.py`'s.

Knows nothing of projections, weights or text.
"""
