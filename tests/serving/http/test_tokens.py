"""The file of bearer tokens: what is refused of it, and that a change of it is seen."""

import os

import pytest

from howdah.errors import ConfigError
from howdah.serving.http import access
from howdah.serving.http.tokens import TokenFile

OLD, NEW = b"0123456789abcdef-old", b"0123456789abcdef-new"


def write(path, *lines: bytes) -> str:
    path.write_bytes(b"\n".join(lines) + b"\n")
    path.chmod(0o600)
    return str(path)


def test_a_wrong_line_is_named_by_its_number_in_the_file(tmp_path):
    path = write(tmp_path / "tokens", b"", b"", OLD, b"", b"short")
    with pytest.raises(ConfigError, match="line 5 is shorter"):
        access.tokens(path)


def test_tokens_for_metrics_stand_apart(tmp_path):
    path = write(tmp_path / "tokens", OLD + b"\r", b"metrics  " + NEW)
    assert access.read(path) == ([OLD], [NEW])
    assert access.tokens(path) == [OLD] and access.tokens(None) == []
    with pytest.raises(ConfigError, match="tokens for metrics alone"):
        access.tokens(write(tmp_path / "metrics", b"metrics " + NEW))


@pytest.mark.parametrize("spelt", ["{}", "file://{}", "~/tokens"])
def test_a_token_that_is_revoked_is_refused_however_the_path_is_spelt(tmp_path, monkeypatch, spelt):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write(tmp_path / "tokens", OLD)
    tokens = TokenFile(spelt.format(path))
    assert tokens.permits(OLD, "/v1/classify")
    os.replace(write(tmp_path / "next", NEW), path)
    tokens.look()
    assert tokens.permits(NEW, "/v1/classify") and not tokens.permits(OLD, "/v1/classify")
