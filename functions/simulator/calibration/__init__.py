"""Calibration: fit an engine profile to measurements of a real engine, and check it on held-out requests.

measure   sends requests to the engine    fit   step costs from the measurements    check   simulates the held-out run
"""
