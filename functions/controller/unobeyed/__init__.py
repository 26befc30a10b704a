"""Policies that are in force and cannot be obeyed: which, why, and what to do about it. Pure.

A policy that is wrong as written is refused (`functions.api.consistency`). These are right as written, and something
else keeps them from being done: what they name, what they are used on, or what the installation lacks.

    findings    one finding: object, field, reason, message
    declared    what the declarations alone show: `shoal validate`, `shoal diff`, the hook, and the controller
    observed    what only the running fleet shows: gateways, agents, and whoever else writes the number of replicas

What is not known is no finding: a gateway that is not heard of may have all it needs.
"""
