"""Cached prefixes of prompts on replicas: events, blooms, own record, tokenizer and template."""
