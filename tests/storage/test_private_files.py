"""Files with a secret: which users may read them decides, as operators mount them."""

import errno
import os
import struct

import pytest

from howdah import storage
from howdah.errors import NotFound, PermissionDenied, StorageError
from howdah.storage import private_files
from tests.support import memory_storage

US = os.geteuid()
STRANGER = 61234
NO_ID = 0xFFFFFFFF


def secret(tmp_path, mode, group=None):
    path = tmp_path / "secret"
    path.write_text("s3cr3t\n")
    if group is not None:
        if US != 0:
            pytest.skip("only root gives a file to another group")
        os.chown(path, -1, group)
    path.chmod(mode)
    return str(path)


def read(path):
    return private_files.read(path, what="the file of tokens", where=f"serve.token_file {path}")


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440])
def test_what_the_process_alone_may_read_is_read(tmp_path, mode):
    """0440 with one of our groups is how Kubernetes mounts a Secret with fsGroup."""
    assert read(secret(tmp_path, mode)) == "s3cr3t\n"


@pytest.mark.parametrize("mode", [0o640, 0o660, 0o604, 0o444, 0o644, 0o620, 0o450, 0o666])
def test_what_others_may_read_or_write_is_refused_without_its_text(tmp_path, mode):
    with pytest.raises(PermissionDenied) as caught:
        read(secret(tmp_path, mode))
    assert f"{mode:04o}" in caught.value.got and "s3cr3t" not in str(caught.value)


def test_a_mounted_file_of_a_group_that_is_not_ours_is_refused(tmp_path):
    with pytest.raises(PermissionDenied, match="its group"):
        read(secret(tmp_path, 0o440, group=STRANGER))


def acl(*named, group=0, mask=4):
    """system.posix_acl_access, as setfacl writes it: version 2, then (tag, permissions, id)."""
    entries = [(0x01, 4, NO_ID), *named, (0x04, group, NO_ID), (0x10, mask, NO_ID),
               (0x20, 0, NO_ID)]  # fmt: skip
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in sorted(entries))


@pytest.mark.parametrize(
    ("named", "group", "mask", "problem"),
    [
        ([(0x02, 4, US)], 0, 4, None),  # systemd's LoadCredential=
        ([(0x02, 4, STRANGER)], 0, 4, f"user {STRANGER}"),
        ([(0x08, 4, STRANGER)], 0, 4, f"group {STRANGER}"),
        ([(0x02, 0, STRANGER)], 0, 4, None),
        ([(0x02, 6, US)], 0, 6, "writers"),
    ],
)
def test_an_access_control_list_is_read_entry_by_entry(tmp_path, named, group, mask, problem):
    path = secret(tmp_path, 0o400)
    try:
        os.setxattr(path, "system.posix_acl_access", acl(*named, group=group, mask=mask))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("no access control lists here")
    assert os.stat(path).st_mode & 0o777 == 0o400 | mask << 3  # the bits show the mask
    if problem is None:
        assert read(path) == "s3cr3t\n"
    else:
        with pytest.raises(PermissionDenied, match=problem):
            read(path)


def test_what_is_not_a_file_of_text_is_an_error(tmp_path):
    with pytest.raises(NotFound, match="no such file"):
        read(str(tmp_path / "none"))
    with pytest.raises(StorageError, match="is not a file"):
        read(str(tmp_path))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(StorageError, match="is not a file"):  # not waited for
        read(str(tmp_path / "pipe"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "bytes").chmod(0o600)
    with pytest.raises(StorageError, match="UTF-8"):
        read(str(tmp_path / "bytes"))


def test_a_file_that_is_too_large_is_refused_and_not_cut(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"x" * 65536)
    path.chmod(0o600)
    assert len(read(str(path))) == 65536
    path.write_bytes(b"x" * 65537)
    with pytest.raises(StorageError, match="too large"):
        read(str(path))


def test_a_storage_without_modes_is_refused(tmp_path):
    memory_storage.register()
    storage.write_whole("memory://private/secret", b"s3cr3t")
    with pytest.raises(PermissionDenied, match="nothing says who may read") as caught:
        read("memory://private/secret")
    assert "memory://" in caught.value.got and "chmod" not in caught.value.remedy
