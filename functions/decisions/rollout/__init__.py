"""Rollouts: lifecycle, evidence, evaluation and traffic split."""
