"""Storages through fsspec: s3:// (extra `s3`)."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

from howdah.core.paths import join, name
from howdah.errors import AlreadyExists, NotAuthenticated, StorageError
from howdah.faults import replaced, typed, unavailable
from howdah.storage import retry
from howdah.storage.base import Backend, Entry, Fill
from howdah.storage.files import RangeReader, Writer


def entry_of(path: str, info: dict) -> Entry:
    """The entry of a path by what fsspec says of it."""
    when = info.get("mtime") or info.get("LastModified") or info.get("created") or 0
    return Entry(
        name=name(path),
        path=path,
        size=int(info.get("size") or 0),
        is_dir=info.get("type") == "directory",
        modified=when.timestamp() if hasattr(when, "timestamp") else float(when),
    )


PUT_BYTES = 8 * 2**20
"""Files up to here go up in one request, larger ones in parts of this size."""
_LAST = "manifest.json"
_TOKEN = "howdah-writer"


class S3Storage(Backend):
    """Objects in buckets, through s3fs; keys, endpoint and region as boto3 takes them (AWS_...).

    A file appears whole or not at all, also after a crash (an incomplete upload is not visible),
    and of several creators of one name exactly one succeeds (If-None-Match). But S3 has no rename:
    `rename_dir` copies, manifest.json last (readers take a directory without it for unfinished),
    then removes the source, and does not notice another publisher of the same directory at the
    same moment. Directories are prefixes: an empty one is a marker object.
    """

    def __init__(self) -> None:
        try:
            import s3fs
        except ImportError:
            raise StorageError(
                "s3:// needs the package s3fs", remedy="pip install 'howdah[s3]'"
            ) from None
        # No cache of listings: other processes write too.
        self._fs: Any = s3fs.S3FileSystem(use_listings_cache=False)

    @staticmethod
    def _key(path: str) -> str:
        return path.partition("://")[2].rstrip("/")

    def entry(self, path: str) -> Entry:
        with _typed_s3(path, "look up"):
            return entry_of(path, self._fs.info(self._key(path), refresh=True))

    def list_dir(self, path: str) -> Iterator[Entry]:
        key = self._key(path)
        with _typed_s3(path, "list"):
            if self._fs.info(key, refresh=True)["type"] != "directory":
                raise NotADirectoryError(path)
            infos = self._fs.ls(key, detail=True, refresh=True)
        # The directory's own marker object is listed too.
        infos = [info for info in infos if info["name"].rstrip("/") != key]
        return iter([entry_of(join(path, name(info["name"])), info) for info in infos])

    def open_read(self, path: str) -> BinaryIO:
        with _typed_s3(path, "read"):
            # s3fs requests each range with the ETag of the opening: never two objects' bytes.
            if self._fs.info(self._key(path), refresh=True)["type"] == "directory":
                raise IsADirectoryError(path)
            file = self._fs.open(self._key(path), "rb", cache_type="none")
        lock = threading.Lock()

        def attempt(offset: int, length: int) -> bytes:
            with lock, _typed_s3(path, "read"):
                file.seek(offset)
                return file.read(length)

        def fetch(offset: int, length: int) -> bytes:
            data = retry.run(path, lambda: attempt(offset, length))
            if len(data) != length:
                raise replaced(path)
            return data

        return RangeReader(fetch, file.size, path=path)

    def open_write(self, path: str, mode: int | None = None) -> BinaryIO:
        sink = _Upload(self._fs, self._key(path), replace=True, token=None)
        return Writer(sink, lambda: _typed_s3(path, "write"), path=path)

    def put(
        self, path: str, fill: Fill, *, replace: bool, size: int | None, mode: int | None = None
    ) -> None:
        token = secrets.token_hex(8)

        def upload() -> None:
            sink = _Upload(self._fs, self._key(path), replace=replace, token=token)
            doing = "write" if replace else "create"
            writer = Writer(sink, lambda: _typed_s3(path, doing), path=path)
            try:
                fill(writer)
                writer.close()
            except BaseException:
                sink.give_up()
                raise

        try:
            retry.run(path, upload)
        except AlreadyExists:
            # boto3 repeats a request whose answer is lost: the object may be this upload's.
            with _typed_s3(path, "create"):
                if self._fs.metadata(self._key(path), refresh=True).get(_TOKEN) != token:
                    raise

    def make_dirs(self, path: str, mode: int | None = None) -> None:
        bucket, _, key = self._key(path).partition("/")
        with _typed_s3(path, "make the directory"):
            if not key:
                self._fs.info(bucket)
            elif not self._fs.exists(f"{bucket}/{key}"):
                self._fs.call_s3("put_object", Bucket=bucket, Key=key + "/", Body=b"")

    def set_mode(self, path: str, mode: int) -> None:
        """Objects have no permission bits: the bucket's policy applies."""

    def remove(self, path: str, recursive: bool) -> None:
        whole = self._key(path)
        bucket, _, key = whole.partition("/")
        with _typed_s3(path, "remove"):
            if self._fs.info(whole, refresh=True)["type"] != "directory":
                self._fs.rm_file(whole)
                return
            below = self._fs.find(whole, refresh=True)
            if [name for name in below if name.rstrip("/") != whole] and not recursive:
                raise StorageError("cannot remove: the directory is not empty", where=path)
            keys = [{"Key": name.partition("/")[2]} for name in below]
            for start in range(0, len(keys), 1000):  # S3's limit
                answer = self._fs.call_s3(
                    "delete_objects",
                    Bucket=bucket,
                    Delete={"Objects": keys[start : start + 1000], "Quiet": True},
                )
                for fault in answer.get("Errors", []):
                    raise PermissionError(f"{fault.get('Key')}: {fault.get('Message')}")
            if key:
                self._fs.call_s3("delete_object", Bucket=bucket, Key=key + "/")

    def rename_dir(self, source: str, target: str) -> None:
        old, new = self._key(source), self._key(target)
        with _typed_s3(target, "publish"):
            if self._fs.exists(new):
                raise FileExistsError(target)
            below = [key for key in self._fs.find(old, refresh=True) if not key.endswith("/")]
            if not below and not self._fs.exists(old):
                raise FileNotFoundError(source)
            for key in sorted(below, key=lambda key: (name(key) == _LAST, key)):
                self._fs.cp_file(key, new + key[len(old) :])
        if not below:
            self.make_dirs(target)
        self.remove(source, recursive=True)


class _Upload:
    """One object being written: in one request if it is small, else in parts."""

    def __init__(self, fs: Any, key: str, *, replace: bool, token: str | None) -> None:
        self._fs, self._key, self._replace = fs, key, replace
        self._extra = {"Metadata": {_TOKEN: token}} if token else {}
        self._held = bytearray()
        self._file: Any = None

    def write(self, data: Any) -> int:
        if self._file is None and len(self._held) + len(data) > PUT_BYTES:
            self._file = self._fs.open(
                self._key,
                "wb" if self._replace else "xb",
                block_size=PUT_BYTES,
                autocommit=False,
                **self._extra,
            )
            self._file.write(bytes(self._held))
            self._held.clear()
        if self._file is not None:
            return self._file.write(bytes(data))
        self._held += data
        return len(data)

    def close(self) -> None:
        if self._file is None:
            mode = "overwrite" if self._replace else "create"
            self._fs.pipe_file(self._key, bytes(self._held), mode=mode, **self._extra)
        else:
            self._file.close()
            self._file.commit()

    def give_up(self) -> None:
        """Remove the parts; what was not committed is never visible."""
        if self._file is not None:
            with contextlib.suppress(Exception):  # best effort after an error of its own
                self._file.discard()


@contextlib.contextmanager
def _typed_s3(path: str, doing: str) -> Iterator[None]:
    import botocore.exceptions as boto
    import s3fs

    try:
        with typed(path, doing):
            try:
                yield
            except s3fs.utils.FileExpired:
                raise replaced(path) from None
            except OSError as error:
                response = getattr(error.__cause__, "response", None) or {}
                code = str(response.get("Error", {}).get("Code", ""))
                if code in ("PreconditionFailed", "412", "ConditionalRequestConflict"):
                    raise FileExistsError(path) from None
                if code in ("InvalidAccessKeyId", "ExpiredToken", "SignatureDoesNotMatch"):
                    raise _no_credentials(path, doing, f"{code}: {error}") from None
                if code in ("503", "SlowDown", "ServiceUnavailable", "500", "InternalError"):
                    raise unavailable(path, doing, f"{code}: {error}") from None
                raise
    except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
        raise _no_credentials(path, doing, str(error)) from None
    except (boto.ConnectionError, boto.HTTPClientError) as error:
        raise unavailable(path, doing, str(error)) from None
    except boto.BotoCoreError as error:
        raise StorageError(f"cannot {doing}", where=path, got=str(error)) from None


def _no_credentials(path: str, doing: str, cause: str) -> NotAuthenticated:
    return NotAuthenticated(
        f"cannot {doing}: S3 accepts none of the credentials here",
        where=path,
        got=cause,
        remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the host's role",
    )
