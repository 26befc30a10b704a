"""Chat compositions: conversations, server tools and summaries on top of chat requests."""
