"""Running a model: choosing tokens and turning them into text.

Start reading at `generate.generate`; `sampler` knows no text, `text_stream` knows no model. `sampling` needs
no torch.
"""
