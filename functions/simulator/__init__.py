"""A fleet in virtual time that runs `functions.decisions` unchanged.

distribution   a base model's way to many nodes: chunks from peers and store
"""
