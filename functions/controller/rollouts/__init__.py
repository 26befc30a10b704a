"""Rollouts in the controller: read from the registry, judged each second, and advanced there.

`client` talks to the registry, `book` stores what it has reported, `following` keeps that up to date, `merging` and
`placing` put it into the snapshot, `driver` judges. The snapshot for gateways follows from the book alone
(`functions.decisions.rollout.steering`).
"""
