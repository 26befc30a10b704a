"""A fleet in virtual time: engines are models, and the decisions are those of `functions.decisions`."""
