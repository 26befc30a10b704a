"""Isolation: one tenant offers many times its share in long prompts. Measures the latency of nine tenants that chat.

python -m loadtests.fairness                  in virtual time: real decisions, simulated engine steps, exact
python -m loadtests.fairness --live           a real gateway and simulated engines as processes
"""
