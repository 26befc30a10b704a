"""Isolation: one tenant offers many times its share in long prompts beside nine that chat. What do the nine notice?

python -m loadtests.fairness                  in virtual time: real decisions, simulated engine steps, exact
python -m loadtests.fairness --live           a real gateway and simulated engines as processes
"""
