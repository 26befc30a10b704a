"""Consent: on an installation that says of itself that it is production, a drill is played only by its name twice.

The environment is a part of each key's text (`SHOAL_ENVIRONMENT` of a fleet on one machine,
`SHOAL_REGISTRY_ENVIRONMENT` elsewhere), so the key that a drill is given says where it is. Pure.
"""

PRODUCTION = frozenset({"live", "prod", "production"})


def environment_of(key: str) -> str:
    """`shoal_<environment>_<id>_<secret>`; empty where it is no key."""
    parts = key.split("_")
    return parts[1] if len(parts) > 3 and parts[0] == "shoal" else ""


def refusal(environment: str, drill: str, consents: list[str]) -> str:
    """Why it is not played; empty: it may be."""
    if environment not in PRODUCTION and environment:
        return ""
    if drill in consents:
        return ""
    what = f"this installation is production (its environment is {environment!r})"
    return f"{what}, and {drill} makes it fail on purpose: --i-consent-on-production {drill} plays it all the same"
