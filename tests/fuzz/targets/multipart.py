"""Multipart bodies of uploads at the gateway and at the registry: the result is fields and bytes, or a refusal.

The first byte selects gateway or registry, the second the size of the segments. All sizes must give the same result.
"""

from functions.gateway.batch.files.upload import UploadForm
from functions.http.multipart import MultipartInvalid, boundary_of
from functions.registry.artifact_routes import AdapterForm
from tests.fuzz.inputs import Input, segments

DICTIONARY = (
    "--b\r\n",
    "--b--\r\n",
    'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n',
    'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n',
    "Content-Type: text/plain\r\n",
    "content-transfer-encoding: base64\r\n",
    "filename*=UTF-8''a%2fb",
    'name="tenant"',
    "\r\n\r\n",
)
CONTENT_TYPE = "multipart/form-data; boundary=b"


def check(data: bytes) -> None:
    given = Input(data)
    read = (_gateway, _registry)[given.byte() % 2]
    size = given.byte()
    body = given.rest().lstrip(b"\r\n")  # after a leading line end python-multipart depends on the segments
    assert read(body, 0) == read(body, size or 1), "what the body is depends on how it came"


def _gateway(body: bytes, size: int) -> object:
    form, file = UploadForm(CONTENT_TYPE), bytearray()
    try:
        for piece in segments(body, size):
            for found in form.feed(piece):
                file += found
        form.end()
    except MultipartInvalid:
        return None
    return form.fields, form.filename, bytes(file)


class _Writer:
    def __init__(self, name: str) -> None:
        self.name, self.content = name, bytearray()

    def write(self, block: bytes) -> None:
        self.content += block

    def close(self) -> None:
        """Do nothing."""


def _registry(body: bytes, size: int) -> object:
    files: list[_Writer] = []

    def opened(name: str) -> _Writer:
        files.append(_Writer(name))
        return files[-1]

    form = AdapterForm(boundary_of(CONTENT_TYPE), opened)
    try:
        for piece in segments(body, size):
            form.write(piece)
        form.end()
    except MultipartInvalid:
        return None
    return form.fields, [(file.name, bytes(file.content)) for file in files]
