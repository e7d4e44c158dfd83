"""Operations and the backends that run them: `ops.py` is the list, `reference/` their meaning."""
