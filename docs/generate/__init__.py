"""The reference pages, written from the code: `python -m docs.generate`, or `make docs`.

For contributors, and not installed. Each module writes one subject: pages, and CSV files for long tables. `pages` lists
the modules. `tests/docs/test_reference.py` fails if a committed file differs from what the code says.
"""
