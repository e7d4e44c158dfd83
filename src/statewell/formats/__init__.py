"""What a checkpoint says about itself, read without torch: file headers, indexes, and each family's config.json.

Everything here may be hostile. Sizes are checked before they are used, nothing is executed, and what is wrong is told
as a CheckpointError naming file, tensor or field, expected and found. Start at `listing.open_listing` for files, at
`families.describe` for a config.json.
"""
