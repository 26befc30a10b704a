"""Writes the reference pages, or with --check says which differ (exit status 1)."""

import sys

from docs.generate.pages import FOLDER, made


def main() -> int:
    pages, check = made(), "--check" in sys.argv[1:]
    differing = [
        name for name, text in pages.items() if not (FOLDER / name).exists() or (FOLDER / name).read_text() != text
    ]
    for name in differing:
        print(f"docs/reference/{name} {'is not what the code says: make docs' if check else 'written'}")
        if not check:
            (FOLDER / name).write_text(pages[name])
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
