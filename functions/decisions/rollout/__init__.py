"""Rollouts: their life, evidence, evaluation and traffic split."""
