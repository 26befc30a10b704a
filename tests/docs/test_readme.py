"""README.md is short, has six links, and names the tests that check its claims."""

import re

from tests.docs.pages import ROOT, links

README = ROOT / "README.md"
_HELD = re.compile(r"<!-- held by (.+?) -->")


def test_readme_has_six_links() -> None:
    assert len([link for link in links(README) if not link.startswith("http")]) == 6
    assert len(README.read_text().splitlines()) < 120


def test_each_claim_names_tests_that_are_there() -> None:
    text = README.read_text().partition("## What it does")[2].partition("\n## ")[0]
    claims = list(re.split(r"^\* ", text, flags=re.MULTILINE)[1:])
    assert len(claims) > 5
    for claim in claims:
        held = [path for found in _HELD.findall(claim) for path in found.split()]
        assert held, f"no test stands behind: {claim}"
        assert [path for path in held if not (ROOT / path).exists()] == []
