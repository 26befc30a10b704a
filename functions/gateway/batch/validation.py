"""Validation of an input file: each line is checked like a request before any is sent.

All problems are reported with their lines, up to a limit; one wrong line prevents all requests of the file.
Conditions at the time of sending (quota, capacity, a model that still exists) are not checked here.
"""

import asyncio
from hashlib import blake2b

import orjson

from functions.api.ids import KeyId, TenantId
from functions.artifacts.errors import ArtifactMissing
from functions.decisions.batch import lines as batch_lines
from functions.decisions.batch.lines import Line, RawLine
from functions.decisions.batch.record import BatchRecord, LineProblem
from functions.decisions.request.access import caller_of
from functions.gateway import errors
from functions.gateway.batch.files.store import FileStore
from functions.gateway.batch.reading import lines_of
from functions.gateway.errors import RequestRejected
from functions.gateway.intake.json_body import parse_object
from functions.gateway.intake.routes import Route
from functions.gateway.services import Services

_LINE_AROUND_BYTES = 4096  # bytes of a line around its body
_YIELD_EVERY = 16  # lines: about a millisecond


class Validation:
    """Validation of one batch; call `run` once."""

    def __init__(self, services: Services, store: FileStore, record: BatchRecord, route: Route) -> None:
        if services.state.catalogue is None:
            raise RequestRejected(
                errors.unavailable("The gateway is starting and has not loaded models and keys yet.", "not_ready", 1)
            )
        self._services = services
        self._catalogue = services.state.catalogue
        tenant, key_id = TenantId(record.tenant), KeyId(record.key_id)
        # If the key is already gone, each line reports that when it is sent.
        self._caller = caller_of(services.state.catalogue, tenant, key_id, services.wall_clock())
        self._store = store
        self._record = record
        self._route = route
        self._max_line_bytes = line_bytes(services)
        self._seen: set[bytes] = set()  # digests: 50,000 ids of a KiB would be 50 MB
        self._problems: list[LineProblem] = []
        self.lines = 0

    async def run(self) -> tuple[LineProblem, ...]:
        """Check the input file's lines, count them in `lines`, and return the problems; none if the file is valid.

        It ends early after MAX_PROBLEMS problems or too many lines.
        """
        record = self._record
        try:
            async for line in lines_of(self._store, record.tenant, record.input_file_id, self._max_line_bytes):
                if (problem := batch_lines.too_many_lines(line)) is not None:
                    return (*self._problems, problem)
                self._check_line(line)
                self.lines += 1
                if len(self._problems) >= batch_lines.MAX_PROBLEMS:
                    break
                if self.lines % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        except ArtifactMissing:
            return (LineProblem("file_not_found", "The input file was deleted."),)
        if not self.lines:
            return (batch_lines.empty_file(),)
        return tuple(self._problems)

    def _check_line(self, line: RawLine) -> None:
        problem = self._problem(line)
        if problem is not None:
            self._problems.append(problem)

    def _problem(self, raw: RawLine) -> LineProblem | None:
        if raw.text is None:
            return batch_lines.over_long(raw, self._max_line_bytes)
        limits = self._services.limits
        try:
            parsed = parse_object(raw.text, limits.json_depth + 1, limits.json_values)
        except RequestRejected as refused:
            return _line_problem(raw, "invalid_json_line", refused)
        line = batch_lines.read_line(raw, parsed, self._record.endpoint)
        if isinstance(line, LineProblem):
            return line
        known_as = blake2b(line.custom_id.encode(), digest_size=16).digest()
        if known_as in self._seen:
            return batch_lines.duplicate(raw)
        self._seen.add(known_as)
        return self._body_problem(raw, line)

    def _body_problem(self, raw: RawLine, line: Line) -> LineProblem | None:
        try:
            body = self._services.intake.read_body(self._route, orjson.dumps(line.body))
            if self._caller is not None:
                self._services.intake.model_for(self._catalogue, self._caller, self._route, body)
        except RequestRejected as refused:
            return _line_problem(raw, refused.answer.code, refused)
        return None


def line_bytes(services: Services) -> int:
    return services.limits.body_bytes + _LINE_AROUND_BYTES


def _line_problem(raw: RawLine, code: str, refused: RequestRejected) -> LineProblem:
    return LineProblem(code, refused.answer.message, raw.number, refused.answer.param)
