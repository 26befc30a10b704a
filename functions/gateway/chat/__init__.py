"""Chat compositions: conversations, server-side tools, other dialects on top of chat."""
