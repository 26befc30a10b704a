"""What replicas have cached of a prompt: events, blooms, own record, tokenizer and template."""
