"""The overload ladder: shed, shift, borrow, provision."""
