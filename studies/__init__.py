"""Studies: shoal beside others, and at sizes that no machine here has. Not part of the installed product."""
