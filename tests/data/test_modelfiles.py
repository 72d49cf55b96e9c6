"""Where a base model's files are found."""

import json
import os
import subprocess
import sys

import huggingface_hub
import pytest

from howdah.data import modelfiles
from howdah.errors import ModelError


def test_a_model_below_the_home_directory_is_found_by_every_question(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    fields = {"model_type": "bert", "vocab_size": 7}
    (tmp_path / "model" / "config.json").write_text(json.dumps(fields))
    directory = modelfiles.fetch("~/model", patterns=["config.json"])
    assert directory == str(tmp_path / "model")
    assert modelfiles.base_config("~/model")["vocab_size"] == 7


@pytest.mark.parametrize("library", ["httpx", "requests"])
def test_a_proxy_that_refuses_is_told_whichever_client_the_hub_has(monkeypatch, tmp_path, library):
    """huggingface_hub uses requests before version 1.0, and httpx from then on."""
    client = pytest.importorskip(library)
    kind = client.ProxyError if library == "httpx" else client.exceptions.ProxyError

    def download(*args, **options):
        raise kind("407 Proxy Authentication Required")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelError, match="the hub cannot be reached") as caught:
        modelfiles.fetch("bert-base-uncased", patterns=["config.json"])
    assert caught.value.got == "ProxyError: 407 Proxy Authentication Required"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_directory_that_another_user_keeps_private_is_a_typed_error():
    code = """
import os, tempfile
from howdah.data.modelfiles import fetch
from howdah.errors import PermissionDenied

with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o711)
    os.seteuid(65534)
    try:
        fetch(folder, patterns=["config.json"])
    except PermissionDenied as error:
        print(error.where == folder)
    os.seteuid(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
