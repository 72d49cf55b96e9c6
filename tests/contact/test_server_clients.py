"""The server's faces as the clients that they are named after use them.

huggingface_hub is in the lock and is used itself. tritonclient 2.73 and kserve 0.21 need older
versions of ml-dtypes, greenlet and protobuf than the lock has: their requests were recorded on a
socket, byte for byte (only Host, Content-Length and the length of an id depend on the run).
"""

import json
import signal
import socket
import struct

import pytest

from tests.runs.servers import LIMIT, Server, publish_version


@pytest.fixture(scope="module")
def server(tmp_path_factory, tiny_model_dir):
    place = tmp_path_factory.mktemp("clients")
    publish_version(place, tiny_model_dir, 2)
    server = Server(place, place)
    server.wait_until_ready()
    yield server
    server.end(signal.SIGKILL)
    assert "Traceback" not in server.output()


def sent(server: Server, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """(status, headers by lower-case name, body) of the answer to recorded bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT) as connection:
        connection.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        while len(body) < int(headers["content-length"]):
            body += connection.recv(65536)
    return int(status.split()[1]), headers, body


def triton_tensors(headers: dict[str, str], body: bytes) -> tuple[dict, dict[str, bytes]]:
    """(the JSON, {name: bytes} of binary outputs), cut as tritonclient cuts them."""
    end = int(headers["inference-header-content-length"])
    head, binary = json.loads(body[:end]), {}
    for output in head["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is not None:
            binary[output["name"]] = body[end : end + size]
            end += size
    assert end == len(body)
    return head, binary


def texts_of(data: bytes) -> list[str]:
    texts = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        texts.append(data[4 : 4 + length].decode())
        data = data[4 + length :]
    return texts


TRITON = (
    b"POST /v2/models/zoo/infer HTTP/1.1\r\nUser-Agent: python/gevent-http-client-2.6.1\r\n"
    b"Inference-Header-Content-Length: %d\r\nHost: 127.0.0.1:39923\r\nContent-Length: %d\r\n\r\n"
)
TRITON_TEXTS = b"\x07\x00\x00\x00the cat\t\x00\x00\x00\xc3\xa9 na\xc3\xafve"


def triton(head: bytes, texts: bytes = TRITON_TEXTS) -> bytes:
    return TRITON % (len(head), len(head) + len(texts)) + head + texts


def test_tritonclient_as_it_comes(server):
    """infer() without outputs: binary texts, and all outputs as binary tensors."""
    head = (
        b'{"inputs":[{"name":"text","shape":[2],"datatype":"BYTES","parameters":'
        b'{"binary_data_size":24}}],"parameters":{"binary_data_output":true}}'
    )
    assert triton(head).startswith(TRITON % (137, 161))
    status, headers, body = sent(server, triton(head))
    assert status == 200, body
    assert headers["content-type"] == "application/octet-stream"
    answer, binary = triton_tensors(headers, body)
    assert (answer["model_name"], answer["model_version"]) == ("zoo", "1")
    assert [one["datatype"] for one in answer["outputs"]] == ["BYTES", "FP32", "BYTES"]
    assert texts_of(binary["label"]) == ["cat", "cat"] and texts_of(binary["error"]) == ["", ""]
    scores = struct.unpack("<4f", binary["scores"])
    assert scores[0] + scores[1] == pytest.approx(1, abs=1e-5) and scores[0] > 0.5


def test_tritonclients_class_count_and_outputs_of_both_kinds(server):
    head = (
        b'{"id":"7","inputs":[{"name":"text","shape":[2],"datatype":"BYTES","parameters":'
        b'{"binary_data_size":24}}],"outputs":[{"name":"scores","parameters":'
        b'{"classification":2,"binary_data":true}},{"name":"label","parameters":'
        b'{"binary_data":false}}]}'
    )
    assert triton(head).startswith(TRITON % (240, 264))
    status, headers, body = sent(server, triton(head))
    assert status == 200, body
    answer, binary = triton_tensors(headers, body)
    scores, label = answer["outputs"]
    assert answer["id"] == "7"
    assert (scores["datatype"], scores["shape"], list(binary)) == ("BYTES", [2, 2], ["scores"])
    assert label["data"] == ["cat", "cat"]
    classes = [one.split(":") for one in texts_of(binary["scores"])]
    assert [one[1:] for one in classes] == [["0", "cat"], ["1", "dog"]] * 2
    assert float(classes[0][0]) > float(classes[1][0])


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda head, texts: (head, texts[:-1]), "inputs[0].parameters.binary_data_size"),
        (lambda head, texts: (head.replace(b"24", b"23"), texts[:-1]), "inputs[0], text 1"),
        (lambda head, texts: (head, b"\xff\xff\xff\xff" + texts[4:]), "inputs[0], text 0"),
        (lambda head, texts: (head, texts[:4] + b"\xff" + texts[5:]), "inputs[0], text 0"),
        (lambda head, texts: (head.replace(b"[2]", b"[3]"), texts), "inputs[0]"),
        (lambda head, texts: (head.replace(b"[2]", b"[1]"), texts), "inputs[0]"),
        (lambda head, texts: (head.replace(b'{"binary_data_size":24}', b"{}"), texts),
         "inputs[0].parameters.binary_data_size"),
    ],
)  # fmt: skip
def test_a_binary_tensor_that_is_cut_off_is_refused_with_its_place(server, change, where):
    head = (
        b'{"inputs":[{"name":"text","shape":[2],"datatype":"BYTES","parameters":'
        b'{"binary_data_size":24}}]}'
    )
    status, _, body = sent(server, triton(*change(head, TRITON_TEXTS)))
    answer = json.loads(body)
    assert (status, answer["where"]) == (422, where), answer
    assert sent(server, triton(head))[0] == 200


def test_a_length_of_the_json_that_is_none_is_refused(server):
    for value in (b"-1", b"1e2", b"99999999999999999999", b"9000", b""):
        request = (
            b"POST /v2/models/zoo/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
            b"Inference-Header-Content-Length: " + value + b"\r\n\r\n{}"
        )
        status, _, body = sent(server, request)
        assert status == 422 and json.loads(body)["where"] == "Inference-Header-Content-Length"


KSERVE = (
    b"POST /v2/models/zoo/infer HTTP/1.1\r\nHost: 127.0.0.1:39923\r\nAccept: */*\r\n"
    b"Accept-Encoding: gzip, deflate, br\r\nConnection: keep-alive\r\n"
    b"User-Agent: python-httpx/0.28.1\r\n"
)


def test_kserves_client(server):
    body = (
        b'{"id":"22870b36-4f21-4872-b7ab-93154180efc6","model_name":"zoo","inputs":'
        b'[{"name":"text","shape":[2],"datatype":"BYTES","data":["the cat","x"]}]}'
    )
    head = b"content-type: application/json\r\nContent-Length: 145\r\n\r\n"
    status, _, answer = sent(server, KSERVE + head + body)
    assert status == 200, answer
    content = json.loads(answer)
    assert content["id"].startswith("22870b36")
    assert content["outputs"][0]["data"] == ["cat", "cat"]


def test_kserves_client_with_binary_texts(server):
    body = (
        b'{"id":"5b073b6a-fe3f-4aac-8d3f-68f88032487d","model_name":"zoo","inputs":'
        b'[{"name":"text","shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":16}}]}'
        b"\x07\x00\x00\x00the cat\x01\x00\x00\x00x"
    )
    head = (
        b"inference-header-content-length: 159\r\ncontent-type: application/octet-stream\r\n"
        b"Content-Length: 175\r\n\r\n"
    )
    status, _, answer = sent(server, KSERVE + head + body)
    assert status == 200, answer
    assert json.loads(answer)["outputs"][0]["data"] == ["cat", "cat"]


@pytest.mark.parametrize("path", ["/predict", "", "/"])
def test_huggingface_hubs_own_client(server, path, monkeypatch, request):
    """The client works with the path of Text Embeddings Inference and with the server's address."""
    import huggingface_hub.utils._http as client_http
    from huggingface_hub import InferenceClient, constants

    # Tests are offline, and the client takes loopback for a hub.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    client_http.reset_sessions()
    request.addfinalizer(client_http.reset_sessions)
    client = InferenceClient(model=f"http://127.0.0.1:{server.port}{path}")
    answers = client.text_classification("the cat")
    assert [one.label for one in answers] == ["cat", "dog"]
    assert answers[0].score + answers[1].score == pytest.approx(1, abs=1e-5)
    assert [one.label for one in client.text_classification("the cat", top_k=1)] == ["cat"]
    same = client.text_classification("the cat", function_to_apply="softmax")
    assert [one.score for one in same] == [one.score for one in answers]
    with pytest.raises(Exception, match="422"):
        client.text_classification("the cat", function_to_apply="sigmoid")


def test_newer_huggingface_hubs_bytes(server):
    """huggingface_hub 2.4 sends `parameters` in every body."""
    for body in (b'{"inputs":"the cat","parameters":{"top_k":1}}',
                 b'{"inputs":"the cat","parameters":{}}'):  # fmt: skip
        request = (
            b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:39923\r\nAccept: */*\r\n"
            b"Connection: keep-alive\r\nuser-agent: unknown/None; hf_hub/2.4.0; python/3.11.7\r\n"
            b"content-type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        ) + body
        status, _, answer = sent(server, request)
        assert status == 200 and json.loads(answer)[0][0]["label"] == "cat"


def test_probes_by_head(server):
    for path in ("/health", "/v2/health/live", "/v2/health/ready", "/v2/models/zoo/ready"):
        request = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT) as connection:
            connection.sendall(request)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\n")


def test_names_that_are_not_known_are_ignored_where_the_protocol_is_others(server):
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"], "extra": 1}
    assert server.ask("/v2/models/zoo/infer", {"inputs": [tensor], "more": [1]})[0] == 200
    assert server.ask("/predict", {"inputs": "a", "normalize": True})[0] == 200
    assert server.ask("/v1/classify", {"text": "a", "more": 1})[0] == 422  # our own format
