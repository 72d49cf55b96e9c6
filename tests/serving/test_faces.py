"""What the three request formats take and refuse, without a server."""

import json

import pytest

from howdah.serving.compute.refusals import Refusal
from howdah.serving.http import faces, oip


def ask(parse, question, *more):
    body = question if isinstance(question, bytes) else json.dumps(question).encode()
    return parse(body, 4, *more)


def infer(body, most_texts, pairs):
    return oip.infer(body, most_texts, pairs=pairs)


def tensor(**changes) -> dict:
    whole = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    return {"inputs": [{**whole, **changes}]}


@pytest.mark.parametrize(
    ("inputs", "texts", "are_pairs"),
    [
        ("a", ["a"], False),
        (["a"], ["a"], False),
        (["a", "b"], ["a\x1eb"], True),
        ([["a"], ["b"], ["c"]], ["a", "b", "c"], False),
        ([["a", "b"]], ["a\x1eb"], True),
    ],
)
def test_inputs_are_those_of_text_embeddings_inference(inputs, texts, are_pairs):
    question = ask(faces.tei, {"inputs": inputs, "truncate": True})
    assert [row.text for row in question.rows] == texts
    assert all(row.pair == are_pairs for row in question.rows)


@pytest.mark.parametrize(
    ("question", "status", "where"),
    [
        ({}, 422, "inputs"),
        ({"inputs": []}, 422, "inputs"),
        ({"inputs": ["a", "b", "c"]}, 422, "inputs"),
        ({"inputs": [["a"], 3]}, 422, "inputs[1]"),
        ({"inputs": ["a", 3]}, 422, "inputs"),
        ({"inputs": [["a", "b", "c"]]}, 422, "inputs[0]"),
        ({"inputs": [[f"{n}"] for n in range(5)]}, 413, "inputs"),
        ({"inputs": "a", "raw_scores": True}, 422, "raw_scores"),
        ({"inputs": "a", "truncate": "yes"}, 422, "truncate"),
        ({"inputs": "a", "truncation_direction": "Left"}, 422, "truncation_direction"),
        ({"inputs": "a", "parameters": []}, 422, "parameters"),
        ({"inputs": "a", "parameters": {"top_k": 0}}, 422, "parameters.top_k"),
        ({"inputs": "a", "parameters": {"top_k": True}}, 422, "parameters.top_k"),
        ({"inputs": "a", "parameters": {"function_to_apply": "tanh"}}, 422,
         "parameters.function_to_apply"),
    ],
)  # fmt: skip
def test_what_text_embeddings_inference_would_not_take_is_refused(question, status, where):
    with pytest.raises(Refusal) as caught:
        ask(faces.tei, question)
    assert (caught.value.status, caught.value.where) == (status, where)


@pytest.mark.parametrize(
    ("question", "status", "where"),
    [
        ({}, 422, "inputs"),
        ({"inputs": {}}, 422, "inputs"),
        ({"inputs": [tensor()["inputs"][0]] * 2}, 422, "inputs"),
        (tensor(name="words"), 422, "inputs[0].name"),
        (tensor(datatype="FP32"), 422, "inputs[0].datatype"),
        (tensor(shape=[2]), 422, "inputs[0].data"),
        (tensor(shape=[1, 2]), 422, "inputs[0].shape"),
        (tensor(shape=[-1]), 422, "inputs[0].shape"),
        (tensor(shape=[True]), 422, "inputs[0].shape"),
        (tensor(shape="1"), 422, "inputs[0].shape"),
        (tensor(shape=[10**30]), 413, "inputs[0].shape"),
        (tensor(data="a"), 422, "inputs[0].data"),
        (tensor(data=[3]), 422, "inputs[0].data[0]"),
        (tensor(data=["\ud800"]), 422, "inputs[0].data[0]"),
        (tensor(parameters={"binary_data_size": 5}), 422, "inputs[0].parameters.binary_data_size"),
        (tensor(parameters=[]), 422, "inputs[0].parameters"),
        (tensor() | {"parameters": []}, 422, "parameters"),
        (tensor() | {"outputs": [{"name": "label", "parameters": {"classification": -1}}]}, 422,
         "outputs[0].parameters"),
        (tensor() | {"outputs": [{"name": f"{n}"} for n in range(17)]}, 422, "outputs"),
        (tensor() | {"outputs": ["label"]}, 422, "outputs"),
        (tensor() | {"id": 7}, 422, "id"),
    ],
)  # fmt: skip
def test_a_tensor_that_is_no_list_of_texts_is_refused_with_its_field(question, status, where):
    with pytest.raises(Refusal) as caught:
        ask(infer, question, False)
    assert (caught.value.status, caught.value.where) == (status, where)
    assert caught.value.expected


def test_wrong_outputs_are_shown():
    for outputs, got in (
        ([{"name": "label", "parameters": {"classification": -1}}], "-1"),
        ([{"name": 1}], '[{"name": 1}]'),
    ):
        with pytest.raises(Refusal) as caught:
            ask(infer, tensor() | {"outputs": outputs}, False)
        assert caught.value.got == got


def test_shapes_of_texts_and_of_pairs():
    of_texts = tensor(shape=[2, 1], data=[["a"], ["b"]])
    assert [row.text for row in ask(infer, of_texts, False).rows] == ["a", "b"]
    of_pairs = tensor(shape=[1, 2], data=["a", "b"])
    [row] = ask(infer, of_pairs, True).rows
    assert row.pair and row.text == "a\x1eb"
    with pytest.raises(Refusal, match="another shape"):
        ask(infer, tensor(), True)
