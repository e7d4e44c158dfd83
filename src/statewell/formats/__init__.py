"""Released formats as descriptions, read without torch: what a checkpoint's files hold and what its config says.

Everything here may be hostile. Sizes are checked before they are used, nothing is executed, and what is wrong is told
as a CheckpointError naming file, tensor, expected and found. Start at `listing.open_listing`.
"""
