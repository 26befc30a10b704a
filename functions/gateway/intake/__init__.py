"""Intake of a request: authentication, strict body parsing, field rules and lengths."""
