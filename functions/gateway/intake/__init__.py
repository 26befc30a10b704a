"""From bytes to an admitted request: authentication, strict bodies, field rules, lengths."""
