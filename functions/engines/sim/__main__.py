"""`python -m functions.engines.sim --model DIR_OR_NAME --served-model-name NAME --port P`: the composition root."""

import logging
import sys

from functions.api import struct_types
from functions.engines.sim.server import run
from functions.engines.sim.settings import read_settings

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    struct_types.prepare()
    run(read_settings(sys.argv[1:]))
