"""Which adapters an engine holds, where a cold one is loaded, when a hot one is copied."""
