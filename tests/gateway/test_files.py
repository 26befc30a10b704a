"""Ids, keys and forms: where text from a client may end up."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.gateway.batch.files import names
from functions.gateway.batch.files.upload import UploadForm, UploadSlots, check_fields, filename_of, own_expiry_s
from functions.gateway.errors import RequestRejected
from functions.http.multipart import MultipartInvalid

BOUNDARY = "xyz"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    named = f'; filename="{filename}"' if filename is not None else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


def fed(*blocks: bytes) -> tuple[UploadForm, bytes]:
    form = UploadForm(TYPE)
    content = b"".join(piece for block in blocks for piece in form.feed(block))
    form.end()
    return form, content


@given(st.text())
def test_only_well_formed_ids_are_ids(text: str) -> None:
    assert not names.is_id("file", text) and not names.is_id("batch", "batch_" + text)
    assert not names.is_id("file", f"file-{'0' * 31}/") and not names.is_id("file", f"file-{'0' * 32}\n")


def test_ids_sort_by_age_and_do_not_repeat() -> None:
    older = [names.new_id("batch", 1_800_000_000.0) for _ in range(100)]
    newer = names.new_id("batch", 1_800_000_000.1)
    assert max(older) < newer and len(set(older)) == 100
    assert all(names.is_id("batch", one) for one in older)


@given(st.binary(max_size=200), st.integers(1, 50))
def test_file_bytes_pass_unchanged_for_any_segmentation(content: bytes, step: int) -> None:
    if f"--{BOUNDARY}".encode() in content:
        return
    body = part("file", content, "in.jsonl") + part("purpose", b"batch") + END
    form, found = fed(*(body[begin : begin + step] for begin in range(0, len(body), step)))
    assert found == content and form.fields == {"purpose": "batch"} and form.filename == "in.jsonl"
    check_fields(form)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        part("purpose", b"batch"),  # no end
        part("purpose", b"batch") + END,  # no file
        part("file", b"x", "a") + part("file", b"y", "b") + END,
        part("purpose", b"batch") + part("purpose", b"batch") + END,
        part("purpose", b"b" * 2000) + END,
        b"".join(part(f"p{n}", b"") for n in range(20)) + END,
        part("n" * 3000, b"") + END,
        b"not a form at all",
    ],
)
def test_malformed_form_is_refused(body: bytes) -> None:
    with pytest.raises(MultipartInvalid):
        fed(body)


@pytest.mark.parametrize("content_type", ["", "application/json", "multipart/form-data", f"{TYPE}{'b' * 80}"])
def test_wrong_content_type_is_refused(content_type: str) -> None:
    with pytest.raises(MultipartInvalid):
        UploadForm(content_type)


def test_unsupported_form_field_is_refused() -> None:
    form, _ = fed(part("purpose", b"batch") + part("colour", b"red") + part("file", b"x", "a") + END)
    with pytest.raises(RequestRejected, match="not supported"):
        check_fields(form)


def test_unsupported_purpose_is_named() -> None:
    """`'purpose' is required` would mislead a client that had sent one."""
    form, _ = fed(part("purpose", b"user_data") + part("file", b"x", "a") + END)
    with pytest.raises(RequestRejected, match="'purpose' must be \"batch\""):
        check_fields(form)


def test_filename_is_shortened_and_sanitised() -> None:
    form, _ = fed(part("purpose", b"batch") + part("file", b"x", "../../etc/\tpasswd" + "y" * 300) + END)
    assert len(filename_of(form)) == 255 and "\t" not in filename_of(form)


def test_uploads_are_bounded_per_tenant_and_in_total() -> None:
    places = UploadSlots(most=2, most_per_tenant=1)
    with places.reserved("acme"):
        with pytest.raises(RequestRejected) as own, places.reserved("acme"):
            raise AssertionError
        with places.reserved("globex"), pytest.raises(RequestRejected) as full, places.reserved("initech"):
            raise AssertionError
    assert (own.value.answer.status, full.value.answer.status) == (429, 503)
    with places.reserved("acme"):
        assert (places.held, places.held_by("acme")) == (1, 1)


def test_second_upload_slot_leaves_slots_for_other_tenants() -> None:
    places = UploadSlots(most=8, most_per_tenant=2)
    with ExitStack() as held:
        for tenant in ("a", "a", "b", "b", "c", "c", "d"):
            held.enter_context(places.reserved(tenant))
        with pytest.raises(RequestRejected) as again, places.reserved("d"):
            raise AssertionError
        assert again.value.answer.status == 503
        with places.reserved("e"), pytest.raises(RequestRejected), places.reserved("f"):
            raise AssertionError


def form_with(**fields: str) -> UploadForm:
    parts = [part(name.replace("__", "[") + "]" * ("__" in name), value.encode()) for name, value in fields.items()]
    return fed(part("file", b"{}", "a"), part("purpose", b"batch"), *parts, END)[0]


def test_file_expiry_is_set_by_its_owner() -> None:
    form = form_with(expires_after__anchor="created_at", expires_after__seconds="3600")
    check_fields(form)
    assert own_expiry_s(form) == 3600 and own_expiry_s(form_with()) is None


@pytest.mark.parametrize(
    ("anchor", "seconds"),
    [("created_at", "3599"), ("created_at", "2592001"), ("now", "3600"), ("created_at", "x"), ("created_at", "9" * 30)],
)
def test_invalid_expiry_is_refused(anchor: str, seconds: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        check_fields(form_with(expires_after__anchor=anchor, expires_after__seconds=seconds))
    assert refused.value.answer.param == "expires_after"
    with pytest.raises(RequestRejected):
        check_fields(form_with(expires_after__anchor=anchor))
