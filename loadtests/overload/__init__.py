"""Overload: many times what a pool can serve. What is still served in time, and is the rest told the truth?

python -m loadtests.overload                  in virtual time: real decisions, simulated engine steps, exact
python -m loadtests.overload --live           a real gateway and simulated engines as processes
"""
