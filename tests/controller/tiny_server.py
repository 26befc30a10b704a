"""A child process for supervisor tests: a web server of a few lines that can misbehave. Run as a script.

    tiny_server.py PORT [--worker FILE] [--ignore-term] [--sick FILE] [--takes-over PIDFILE] [--log TEXT]

GET answers 200, or 503 while the file given by --sick exists.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--worker", type=Path, help="start a sleeping process of our own; write its pid here")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--sick", type=Path)
    parser.add_argument("--takes-over", type=Path, help="share the port; end the process whose pid is in the file")
    parser.add_argument("--spec", help="only there to make another command line")
    given = parser.parse_args()
    if given.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if given.worker:
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        given.worker.write_text(str(worker.pid))

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if given.sick and given.sick.exists() else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", given.port), Answer, bind_and_activate=False)
    if given.takes_over:
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.server_bind()
    server.server_activate()
    if given.takes_over:
        take_over(given.takes_over)
    server.serve_forever()


def take_over(pidfile: Path) -> None:
    former = int(pidfile.read_text()) if pidfile.exists() else None
    pidfile.write_text(str(os.getpid()))
    if former is not None:
        time.sleep(0.3)  # both serve for a moment
        os.kill(former, signal.SIGTERM)


if __name__ == "__main__":
    main()
