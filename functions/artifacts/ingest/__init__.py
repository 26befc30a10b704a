"""Ingest of adapters: receive them into a private directory, check them, and only then publish them.

    upload or URI -> staging (bounded while reading) -> check_adapter -> verify_signed -> put_content -> digest

Nothing reaches the store before every check has passed, and nothing stays in staging after a rejection or a kill. All
calls block: the registry runs them in threads.
"""

from functions.artifacts.ingest.ingest import Ingest
from functions.artifacts.ingest.policy import Expectation, Ingested, IngestPolicy
from functions.artifacts.ingest.upload import FileWriter, StagingBudget, Upload

__all__ = ["Expectation", "FileWriter", "Ingest", "IngestPolicy", "Ingested", "StagingBudget", "Upload"]
