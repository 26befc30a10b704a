"""Write the reference pages, the observability component and the console's runbooks.

With --check, print the files that differ and exit with status 1.
"""

import sys

from docs.generate.observability import COMPONENT, RUNBOOKS_FILE, component_files, runbooks_json
from docs.generate.pages import FOLDER, reference_files
from docs.generate.source import ROOT


def main() -> int:
    check = "--check" in sys.argv[1:]
    files = {FOLDER / name: text for name, text in reference_files().items()}
    files |= {COMPONENT / name: text for name, text in component_files().items()}
    files |= {RUNBOOKS_FILE: runbooks_json()}
    differing = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in differing:
        print(f"{path.relative_to(ROOT)} {'differs from the code: run `make docs`' if check else 'written'}")
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[path])
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
