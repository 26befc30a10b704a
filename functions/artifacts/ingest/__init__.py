"""How adapters from outside become artifacts: received into a private place, checked, and only then published.

    upload or URI -> staging (bounded while reading) -> check_adapter -> verify_signed -> put_content -> digest

Nothing reaches the store before every check has passed, and nothing stays in staging after a refusal or a kill. All
of it blocks: the registry calls it in threads.
"""

from functions.artifacts.ingest.ingest import Ingest
from functions.artifacts.ingest.policy import Expectation, Ingested, IngestPolicy
from functions.artifacts.ingest.upload import FileWriter, StagingBudget, Upload

__all__ = ["Expectation", "FileWriter", "Ingest", "IngestPolicy", "Ingested", "StagingBudget", "Upload"]
