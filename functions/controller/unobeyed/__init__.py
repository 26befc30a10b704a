"""Policies that are in force but have no effect: which, why, and what to do. Pure.

Invalid policies are rejected elsewhere (`functions.api.consistency`). These are valid, but something else prevents
them: an object that they name, a pool that they apply to, or something that the installation lacks.

    findings    one finding: object, field, reason, message
    declared    findings from declarations alone: `shoal validate`, `shoal diff`, the hook, and the controller
    observed    findings from the running fleet: gateways, agents, and other writers of the number of replicas

Missing information is no finding: a silent gateway may have all it needs.
"""
