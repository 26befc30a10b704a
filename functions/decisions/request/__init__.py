"""One request before it runs: who sends it, how large it is, what it will cost."""
