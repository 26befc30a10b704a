"""Rollouts in the controller: read from the registry, judged each second, and moved on there.

`client` speaks to the registry, `book` is what it has told so far, `following` keeps that up to date, `merging` and
`placing` put it into the snapshot, `driver` judges. What gateways see follows from the book alone
(`functions.decisions.rollout.steering`).
"""
