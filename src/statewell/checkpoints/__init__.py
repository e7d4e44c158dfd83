"""Models in and out of files: ours (`native.py`) now, released families later. Safetensors only; nothing in a file is
run.

Start at `load.load`, the front door.
"""
