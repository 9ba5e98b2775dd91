"""Paths stay inside the folder, files are regular and used once, and do not change meanwhile."""

import io
import os
import socket
from pathlib import Path
from typing import BinaryIO

import pytest

from cke.attention_packet.analyze import analyze
from cke.schemas import reading
from tests.attention_packet.build import FILES, example, run
from tests.attention_packet.conftest import Refused, refusal_text

contract = pytest.mark.contract
ROLES = [*(f"$.tensors.{name}.file" for name in FILES), "$.metadata.file"]


def point(builder, role: str, name: str) -> None:
    _, *keys, last = role.split(".")
    target = builder.packet
    for key in keys:
        target = target[key]
    target[last] = name


@contract("PKT-31")
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "name", ["../x.bin", "/etc/hostname", "a/../../x.bin", "a/../queries.bin", "..", "./../x.bin"]
)
def test_path_that_leaves_the_folder_is_refused(role: str, name: str, tmp_path: Path) -> None:
    tmp_path.joinpath("x.bin").write_bytes(b"x" * 64)
    builder = example()
    point(builder, role, name)
    tmp_path.joinpath("packet/a").mkdir(parents=True)
    text = refusal_text(run(builder, tmp_path / "packet"))
    assert text.startswith(f"CKE841: {role}: expected a ")
    assert "path" in text


@contract("PKT-31")
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_link_that_leaves_the_folder_is_refused(role: str, kind: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    builder = example()
    path = builder.write(tmp_path / "packet")
    real = "attention-metadata.json" if "metadata" in role else FILES[role.split(".")[2]]
    os.rename(path.parent / real, outside / real)
    if kind == "file":
        path.parent.joinpath(real).symlink_to(outside / real)
    else:
        path.parent.joinpath("linked").symlink_to(outside, target_is_directory=True)
        point(builder, role, f"linked/{real}")
        import json

        path.write_text(json.dumps(builder.packet))
    assert refusal_text(analyze(path)) == f"CKE841: {role}: the file lies outside the packet folder"


@contract("PKT-71")
@pytest.mark.parametrize("name", ["output.bin", "attention-metadata.json"])
def test_link_inside_the_folder_is_accepted(name: str, tmp_path: Path) -> None:
    path = example().write(tmp_path)
    tmp_path.joinpath("kept").mkdir()
    os.rename(tmp_path / name, tmp_path / "kept/real")
    tmp_path.joinpath(name).symlink_to("kept/real")
    assert analyze(path).analysis.status == "analyzed"


@contract("PKT-32")
@pytest.mark.parametrize("other", ["attention-metadata.json", "packet.json", "queries.bin"])
def test_file_of_two_roles_is_refused(other: str, refused: Refused) -> None:
    builder = example()
    builder.tensors["output"]["file"] = other
    assert refused(builder).startswith("CKE841: $.tensors.output.file: the file is also that of `")


@contract("PKT-32")
@pytest.mark.parametrize("spelling", ["./queries.bin", ".//queries.bin"])
def test_file_of_two_roles_under_another_spelling_is_refused(
    spelling: str, refused: Refused
) -> None:
    builder = example()
    builder.tensors["output"]["file"] = spelling
    assert refused(builder).endswith("the file is also that of `$.tensors.queries.file`")


@contract("PKT-32")
@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_linked_file_of_two_roles_is_refused(link: str, tmp_path: Path) -> None:
    path = example().write(tmp_path)
    target = tmp_path / "queries.bin"
    output = tmp_path / "output.bin"
    output.unlink()
    getattr(output, link)(target)
    assert refusal_text(analyze(path)).endswith("the file is also that of `$.tensors.queries.file`")


@contract("PKT-32")
def test_packet_as_its_own_metadata_is_refused(refused: Refused) -> None:
    builder = example()
    builder.packet["metadata"]["file"] = "packet.json"
    assert refused(builder).endswith("the file is also that of `packet.json`")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


@contract("PKT-33")
@pytest.mark.parametrize(
    "make", [make_fifo, make_socket, Path.mkdir], ids=["fifo", "socket", "folder"]
)
@pytest.mark.parametrize("name", ["output.bin", "attention-metadata.json"])
def test_file_that_is_not_regular_is_refused_without_blocking(
    make, name: str, tmp_path: Path
) -> None:
    path = example().write(tmp_path)
    tmp_path.joinpath(name).unlink()
    make(tmp_path / name)
    assert refusal_text(analyze(path)).endswith("expected a regular file")


@contract("PKT-33")
@pytest.mark.parametrize(
    "make", [make_fifo, make_socket, Path.mkdir], ids=["fifo", "socket", "folder"]
)
def test_packet_that_is_not_regular_is_refused_without_blocking(make, tmp_path: Path) -> None:
    make(tmp_path / "packet.json")
    assert "expected a regular file" in refusal_text(analyze(tmp_path / "packet.json"))


@contract("PKT-33")
def test_device_is_refused() -> None:
    ours, theirs = os.openpty()
    try:
        outcome = analyze(Path(os.ttyname(theirs)))
    finally:
        os.close(ours)
        os.close(theirs)
    assert "expected a regular file" in refusal_text(outcome)


@contract("PKT-34")
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "expected a file name, got an empty one"),
        ("output\0.bin", "expected a file name without NUL or backslash"),
        ("a\\output.bin", "expected a file name without NUL or backslash"),
    ],
)
def test_file_name_that_no_system_agrees_on_is_refused(
    role: str, name: str, expected: str, refused: Refused
) -> None:
    builder = example()
    point(builder, role, name)
    assert refused(builder) == f"CKE841: {role}: {expected}"


@contract("PKT-34")
def test_overlong_file_name_is_refused(refused: Refused) -> None:
    builder = example()
    builder.tensors["output"]["file"] = "x" * 5000
    assert refused(builder).startswith("CKE841: $.tensors.output.file: expected a file")


@contract("PKT-36")
@pytest.mark.parametrize("change", ["size", "time"])
@pytest.mark.parametrize("name", ["output.bin", "attention-metadata.json", "packet.json"])
def test_file_that_changes_while_it_is_read_is_refused(
    name: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = example().write(tmp_path)
    target = tmp_path / name
    real = reading.open_regular

    class ChangingFile(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            raw = super().read(size)
            if change == "size":
                with target.open("ab") as file:
                    file.write(b" ")
            else:
                os.utime(target, ns=(1, 1))
            return raw

    def open_regular(file: Path, *, links: bool = True) -> BinaryIO:
        return ChangingFile(file) if file == target else real(file, links=links)

    monkeypatch.setattr(reading, "open_regular", open_regular)
    text = refusal_text(analyze(path))
    assert "the file changed while it was read" in text
