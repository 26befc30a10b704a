"""What the overload ladder does when a model is suddenly asked for five times as much, beside what others do."""
