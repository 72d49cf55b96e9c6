"""server.json: where a server on a cluster listens, as clients may believe it."""

import json

import pytest

from howdah import storage
from howdah.errors import HowdahError, ModelError, NotFound
from howdah.models.server_file import ServerAddress, path_of, read, write
from serving import container
from yarn import spec

TOKEN, NEXT, OTHER = b"0123456789abcdef", b"0123456789abcdeg", b"fedcba9876543210"
HERE = ServerAddress(
    url="http://node:41", application="application_1_2", container="c_1", started=1.5
)


def test_an_address_is_believed_if_it_is_signed_with_the_token(tmp_path):
    path = path_of(str(tmp_path))
    with pytest.raises(NotFound):
        read(path, [TOKEN])
    write(path, HERE, [TOKEN, NEXT])
    assert read(path, [OTHER, TOKEN]) == read(path, [NEXT]) == read(path, []) == HERE
    with pytest.raises(ModelError, match="not signed with this token"):
        read(path, [OTHER])
    whole = storage.read_json(path)
    moved = whole["value"].replace("node:41", "evil:41")
    storage.write_whole(path, json.dumps({**whole, "value": moved}).encode())
    with pytest.raises(ModelError, match="not signed"):
        read(path, [TOKEN])
    write(path, HERE, [])  # of a server without a token
    with pytest.raises(ModelError, match="not signed"):
        read(path, [TOKEN])


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"value": "{}", "seals": null}', b'{"value'])
def test_another_file_is_an_error_that_names_it(tmp_path, data):
    path = path_of(str(tmp_path))
    storage.write_whole(path, data)
    with pytest.raises(HowdahError) as caught:
        read(path, [])
    assert "server.json" in str(caught.value)


def test_both_sides_of_a_container_agree_on_the_name_of_the_configuration():
    assert container.CONFIG == spec.CONFIG
