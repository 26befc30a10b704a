"""A minimal role for `test_roles`, which prints, exits, fails or keeps running."""

import atexit
import os
import sys
import threading
import time
from pathlib import Path

if __name__ == "__main__":
    atexit.register(print, "at its end", flush=True)
    match sys.argv[1]:
        case "says":
            print(os.environ, Path.cwd(), sys.stdin.read())
            threading.Timer(0.1, print, ["its last thread"]).start()
        case "exits":
            sys.exit(3)
        case "refuses":
            sys.exit("no, and why")
        case "fails":
            raise ValueError("so it ends")
        case "stays":
            print("here", flush=True)
            time.sleep(600)
