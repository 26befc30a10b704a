"""The local target: the fleet as processes of one machine.

A pure core (`spec`, `plan`, `lifecycle`, `step`) decides what should run and what to do next; `supervisor` is the
shell that does it. `prepare` creates what the processes need: secrets, certificates, the engine's environment and the
base model.
"""
