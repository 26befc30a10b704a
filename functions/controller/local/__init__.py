"""The local target: the fleet as processes of one machine.

A pure core (spec, plan, lifecycle, reconcile) says what should run and what to do next; `supervisor` is the shell that
does it. `prepare` makes what the processes need: secrets, certificates, the engine's environment, the base model.
"""
