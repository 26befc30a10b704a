"""Edits of a model's YAML change one value and no other byte; other edits are rejected."""

import io
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from functions.cli.catalogue_edit import CannotEdit, with_channel, with_digest, with_version

SHIPPED = (Path(__file__).parents[2] / "registry" / "models.yaml").read_text()
DIGEST = "sha256:" + "1" * 64
HEAD = "apiVersion: shoal.dev/v1alpha1\nkind: Model\nmetadata: {name: acme.bot}\nspec:\n"


def model(body: str) -> str:
    return HEAD + "".join(f"  {line}\n" for line in ["id: acme/bot", *body.splitlines()])


def test_only_the_value_changes_in_the_catalogue_that_ships() -> None:
    after = with_channel(SHIPPED, "acme/support-bot", "stable", "v2")
    assert after == SHIPPED.replace(
        'support-bot/v2"}\n  channels: {stable: v1}', 'support-bot/v2"}\n  channels: {stable: v2}'
    )


LAYOUTS = {
    "channels: {stable: v1}": "channels: {stable: v2}",
    "channels: { stable:   v1 }   # all": "channels: { stable:   v2 }   # all",
    "channels: {stable: 'v1'}": "channels: {stable: 'v2'}",
    'channels: {beta: v1, stable: "v1"}': 'channels: {beta: v1, stable: "v2"}',
    "channels:\n  # all\n  stable: v1  # since May\n  b: v2": "channels:\n  # all\n  stable: v2  # since May\n  b: v2",
    "channels:\n  beta: v1 # b\n  # end": "channels:\n  beta: v1 # b\n  stable: v2\n  # end",
    "channels: {beta: v1}": "channels: {beta: v1, stable: v2}",
    "channels: {}": "channels: {stable: v2}",
}
VERSIONS = "versions:\n  - {name: v1, artifact: x}\n  - {name: v2, artifact: y}"


@pytest.mark.parametrize(("channels", "expected"), LAYOUTS.items())
def test_a_channel_moves_in_every_layout(channels: str, expected: str) -> None:
    assert with_channel(model(f"{channels}\n{VERSIONS}"), "acme/bot", "stable", "v2") == model(
        f"{expected}\n{VERSIONS}"
    )


def test_a_model_without_channels_gets_them() -> None:
    after = with_channel(model(f"{VERSIONS} # two\nrollout: slow"), "acme/bot", "stable", "v2")
    assert after == model(f"{VERSIONS} # two\nrollout: slow\nchannels: {{stable: v2}}")


@pytest.mark.parametrize("version", ["1.0", "null", "1e3", "0x10", "on", "2026-01-01"])
def test_a_version_that_yaml_would_read_as_something_else_is_quoted(version: str) -> None:
    after = with_channel(model("channels: {stable: v1}"), "acme/bot", "stable", version)
    assert YAML(typ="safe").load(io.StringIO(after))["spec"]["channels"]["stable"] == version
    assert yaml.safe_load(after)["spec"]["channels"]["stable"] == version


def test_line_ends_stay_as_they_are() -> None:
    before = model("channels:\n  beta: v1").replace("\n", "\r\n")
    after = with_channel(before, "acme/bot", "stable", "v2")
    assert after.count("\r\n") == after.count("\n") == before.count("\n") + 1


def test_a_file_without_a_last_newline_gets_its_line() -> None:
    after = with_channel(model("channels:\n  beta: v1").rstrip("\n"), "acme/bot", "stable", "v2")
    assert after.endswith("    beta: v1\n    stable: v2\n")


@pytest.mark.parametrize(
    "channels",
    [
        "channels: &all {stable: v1}\nrollout: default",
        "rollout: &name v1\nchannels: {stable: *name}",
        "channels: {beta: &one v1, stable: *one}",
        "channels: [stable]",
        "channels: {stable: |-\n    v1\n  }",
    ],
)
def test_what_would_change_more_than_asked_is_left_to_a_person(channels: str) -> None:
    with pytest.raises(CannotEdit):
        with_channel(model(channels), "acme/bot", "stable", "v2")


def test_a_model_that_stands_elsewhere_is_not_edited() -> None:
    with pytest.raises(CannotEdit, match="no Model with the id acme/other"):
        with_channel(SHIPPED, "acme/other", "stable", "v2")


@pytest.mark.parametrize(
    "versions",
    [
        'versions:\n  - {name: v1, artifact: "s3://b/x"} # first\n  # the end\nchannels: {stable: v1}',
        'versions:\n- name: v1\n  artifact: "s3://b/x" # first\nchannels: {stable: v1}',
        'versions: [{name: v1, artifact: "s3://b/x"}]\nchannels: {stable: v1}',
    ],
)
def test_a_version_is_added_at_the_end_of_the_list(versions: str) -> None:
    before = model(versions)
    after = with_version(before, "acme/bot", "v2", "s3://b/y", DIGEST)
    listed = YAML(typ="safe").load(io.StringIO(after))["spec"]["versions"]
    assert listed[1] == {"name": "v2", "artifact": "s3://b/y", "digest": DIGEST}
    assert [line for line in before.splitlines() if line not in after.splitlines()] in (
        [],
        ['  versions: [{name: v1, artifact: "s3://b/x"}]'],
    )


names = st.from_regex(r"\A[a-z0-9]([a-z0-9._-]{0,8}[a-z0-9])?\Z")


@given(channel=names, version=names, others=st.dictionaries(names, names, max_size=4), block=st.booleans())
def test_whatever_the_names_only_that_channel_changes(
    channel: str, version: str, others: dict[str, str], block: bool
) -> None:
    """This includes names that YAML reads as numbers or dates, which users quote."""
    items = [f'"{name}": "{value}"' for name, value in others.items()]
    channels = (
        "channels:\n" + "\n".join(f"  {item} # c" for item in items)
        if block and items
        else f"channels: {{{', '.join(items)}}}"
    )
    before = model(channels)
    after = with_channel(before, "acme/bot", channel, version)
    assert YAML(typ="safe").load(io.StringIO(after))["spec"]["channels"] == {**others, channel: version}
    assert len(after.splitlines()) <= len(before.splitlines()) + 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "versions:\n  - {name: v1, artifact: x} # a",
            f'versions:\n  - {{name: v1, artifact: x, digest: "{DIGEST}"}} # a',
        ),
        (
            "versions:\n  - name: v1\n    artifact: x # a\n  - {name: v2, artifact: y}",
            f'versions:\n  - name: v1\n    artifact: x # a\n    digest: "{DIGEST}"\n  - {{name: v2, artifact: y}}',
        ),
        ("versions: [{name: v1, artifact: x}]", f'versions: [{{name: v1, artifact: x, digest: "{DIGEST}"}}]'),
    ],
)
def test_a_version_gets_the_digest_that_it_was_declared_without(before: str, after: str) -> None:
    assert with_digest(model(before), "acme/bot", "v1", DIGEST) == model(after)


def test_a_digest_is_not_written_over_another() -> None:
    held = with_digest(model(VERSIONS), "acme/bot", "v1", DIGEST)
    with pytest.raises(CannotEdit):
        with_digest(held, "acme/bot", "v1", "sha256:" + "2" * 64)
    with pytest.raises(CannotEdit, match="to the version v3 of acme/bot by hand"):
        with_digest(model(VERSIONS), "acme/bot", "v3", DIGEST)
