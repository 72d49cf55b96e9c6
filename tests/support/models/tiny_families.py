"""A tiny model of each family of texts, with a tokenizer of its kind learnt on the spot.

Weights, configuration and ids are the same at every call and on every machine, so that logits that
transformers computed once can stand here.
"""

from __future__ import annotations

import json
import os
from functools import cache

import numpy as np
from safetensors.numpy import save_file

from howdah.data.family import BERT, FAMILIES, ROBERTA, XLM_ROBERTA, ModelFamily
from tests.support.models.tiny_model import SPECIAL_TOKENS, tokenizer_json, vocabulary, words

FAMILY_NAMES = tuple(family.model_type for family in (BERT, ROBERTA, XLM_ROBERTA))
LABELS = ["negative", "neutral", "positive"]
POSITIONS = 64

_ROBERTA = [
    [-0.9188535, 0.9526560, 0.4142075],
    [-0.5311146, 1.0562882, 0.5206516],
    [-1.1217347, 2.3734584, -0.5385627],
    [-0.5695336, 0.7066633, -0.1678510],
]
LOGITS = {
    "bert": [
        [0.0202967, 0.9974986, 1.2218642],
        [-0.2756030, 0.1619242, 1.0192370],
        [0.2223150, -0.0350998, 1.5031767],
        [-0.6679165, -0.3750858, -0.1036020],
    ],
    "bert, two types": [
        [-0.0013984, 0.3527683, 1.5246446],
        [0.0906625, -0.6262244, 1.4104786],
        [0.2911835, 0.0035340, 1.7517756],
        [0.4274637, -0.4686919, 1.3245929],
    ],
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,  # one arithmetic
}
"""Of transformers' class for `batch()`, LABELS' classifier; test_families_torch compares them."""


def tiny_config(family: ModelFamily) -> dict:
    """config.json: two layers of width 32."""
    type_vocab = {BERT.model_type: {}}.get(family.model_type, {"type_vocab_size": 1})
    return family.complete(
        {
            "attention_probs_dropout_prob": 0.1,
            "hidden_size": 32,
            "initializer_range": 0.1,
            "intermediate_size": 64,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": POSITIONS + family.first_position(family.defaults),
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "vocab_size": 1000,
            **type_vocab,
        }
    )


def tiny_weights(
    family: ModelFamily, config: dict, *, classes: int | None, seed: int = 0
) -> dict[str, np.ndarray]:
    """Random tensors under Hugging Face's torch names, norms and biases too.

    Args:
        classes: of a classifier; None: the encoder alone.
    """
    rng = np.random.default_rng(seed)
    shapes = family.encoder_shapes(config)
    if classes is not None:
        shapes |= family.head_shapes(config, classes)
    return {
        name: (
            0.2 * rng.standard_normal(shape) + name.endswith("LayerNorm.weight")
        ).astype(np.float32)
        for name, shape in shapes.items()
    }  # fmt: skip


def batch(pad_id: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids_BT, mask_BT, types_BT): four rows of 11, 7, 2 and 1 tokens; the padding's type is 0."""
    rng = np.random.default_rng(7)
    lengths = (11, 7, 2, 1)
    ids_BT = np.full((len(lengths), max(lengths)), pad_id, np.int32)
    mask_BT, types_BT = np.zeros_like(ids_BT), np.zeros_like(ids_BT)
    for row, length in enumerate(lengths):
        ids_BT[row, :length] = rng.integers(5, 1000, length)
        mask_BT[row, :length] = 1
        types_BT[row, length // 2 : length] = 1
    return ids_BT, mask_BT, types_BT


def write_family(directory: str, model_type: str, *, labels: list[str] | None = None) -> str:
    """config.json, model.safetensors and the tokenizer's files; returns `directory`.

    Args:
        labels: of a classifier; None: a base model.
    """
    family = FAMILIES[model_type]
    os.makedirs(directory, exist_ok=True)
    config = tiny_config(family)
    if labels is not None:
        config |= {
            "architectures": [family.architecture],
            "id2label": dict(enumerate(labels)),
            "label2id": {label: number for number, label in enumerate(labels)},
        }
    weights = tiny_weights(family, config, classes=None if labels is None else len(labels))
    save_file(weights, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    tokenizer, special = TOKENIZER_OF[family.tokenizer.algorithm]()
    names = {f"{key}_token": token for key, token in special.items()}
    settings = {"tokenizer_class": family.tokenizer_class, "model_max_length": POSITIONS, **names}
    for name, content in (
        ("config.json", json.dumps(config)),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", json.dumps(settings)),
        ("special_tokens_map.json", json.dumps(names)),
    ):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            file.write(content)
    return directory


# ------------------------------------------------------------------------------- the tokenizers
_FAIRSEQ = {
    "cls": "<s>", "bos": "<s>", "pad": "<pad>", "sep": "</s>", "eos": "</s>", "unk": "<unk>",
    "mask": "<mask>",
}  # fmt: skip
_TEXTS = [
    "Caf\u00e9, na\u00efve: \u4e2d\u6587 \u65e5\u672c\u8a9e \u0440\u0443\u0441",
    *(" ".join(words()[start : start + 9]) for start in range(0, 900, 7)),
]  # fmt: skip


@cache
def wordpiece() -> tuple[str, dict[str, str]]:
    """(tokenizer.json, special tokens by their key) of BERT's kind."""
    keys = ("pad", "unk", "cls", "sep", "mask")
    return tokenizer_json(vocabulary()[:1000]), dict(zip(keys, SPECIAL_TOKENS, strict=True))


@cache
def byte_level_bpe() -> tuple[str, dict[str, str]]:
    """The same of RoBERTa's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        sep=("</s>", 2), cls=("<s>", 0), add_prefix_space=False
    )
    return tokenizer.to_str(), dict(_FAIRSEQ)


@cache
def unigram() -> tuple[str, dict[str, str]]:
    """The same of XLM-RoBERTa's."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )  # fmt: skip

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer.to_str(), dict(_FAIRSEQ)


TOKENIZER_OF = {"WordPiece": wordpiece, "BPE": byte_level_bpe, "Unigram": unigram}
"""By TokenizerKind.algorithm."""
