"""What is wrong with an expression, and where in its text."""


class ExpressionInvalid(ValueError):
    """Fix the expression; `offset_chars` counts from its first character, 0."""

    def __init__(self, message: str, offset_chars: int) -> None:
        super().__init__(message)
        self.offset_chars = offset_chars
