"""The registry's tracker routes in a separate process: the only part of the registry that a fan-out needs."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import uvicorn
from fastapi import Depends, FastAPI

from functions.registry import errors
from functions.registry.conventions import require_token
from functions.registry.tracker import Tracker, tracker_routes
from functions.replica.listeners import bind


@contextmanager
def running_tracker(token: str) -> Iterator[str]:
    """Run the tracker and yield its URL."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, token), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()


def _main(pipe: Connection, token: str) -> None:
    app = FastAPI()
    errors.install_error_handlers(app)
    app.include_router(tracker_routes(Tracker(), [Depends(require_token(token))]))
    listener = bind("127.0.0.1", 0, "port")
    pipe.send(listener.getsockname()[1])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    asyncio.run(server.serve(sockets=[listener]))
