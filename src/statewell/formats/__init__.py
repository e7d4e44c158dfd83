"""What a checkpoint says about itself, read without torch: file headers, indexes, and each family's config.json.

Start at `families.describe`, which turns a config.json into a `ModelConfig`; `family.Family` says what a family is.
"""
