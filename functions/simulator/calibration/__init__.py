"""From measurements of a real engine to its profile, and how far the profile is off on requests it was not fitted to.

measure   asks the engine         fit   step costs of what was measured         check   the held-out run, simulated
"""
