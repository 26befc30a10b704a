"""Overload: many times a pool's capacity. Measures goodput, and how often a rejected request succeeds after its wait.

python -m loadtests.overload                  in virtual time: real decisions, simulated engine steps, exact
python -m loadtests.overload --live           a real gateway and simulated engines as processes
"""
