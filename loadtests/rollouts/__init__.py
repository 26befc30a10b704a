"""Hundreds of rollouts in virtual time: how often a good version is halted, and how soon a bad one."""
