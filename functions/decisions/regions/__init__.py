"""Merge of facts (models, channels, keys) between regions."""
