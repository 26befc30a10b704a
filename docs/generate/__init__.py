"""The reference pages, written from the code: `python -m docs.generate`, or `make docs`.

For contributors, and not installed. Each module makes one page or two; `pages` says which.
`tests/docs/test_reference.py` fails where a committed page is not what the code says.
"""
