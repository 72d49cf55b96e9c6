"""Model families: a record of each, for loading, training, export, serving and checks. Pure data.

A new family is a record in FAMILIES; where its arithmetic is another than its fields say, also a
forward pass in models/forward/ (forward_torch, forward_tf, forward_onnx). Tensors have the names of
Hugging Face's torch classifiers (`...ForSequenceClassification`, `...ForImageClassification`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from howdah.data.family_record import (
    DropoutKeys,
    ImageFamily,
    LayerNames,
    ModelFamily,
    SizeKeys,
    TokenizerKind,
)
from howdah.errors import ModelError

_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

# ------------------------------------------------------------------------------- the records
WORDPIECE = TokenizerKind(
    algorithm="WordPiece",
    files=("tokenizer.json", "vocab.txt", *_SETTINGS),
    vocabularies=("tokenizer.json", "vocab.txt"),
    pad_token="[PAD]",
)

BPE = TokenizerKind(
    algorithm="BPE",
    files=("tokenizer.json", "vocab.json", "merges.txt", *_SETTINGS),
    vocabularies=("tokenizer.json", "vocab.json"),
    pad_token="<pad>",
)

# Without sentencepiece.bpe.model: it lacks the ids of the special tokens, and tokenizer.json, which
# transformers' fast classes write, has all of it.
UNIGRAM = TokenizerKind(
    algorithm="Unigram",
    files=("tokenizer.json", *_SETTINGS),
    vocabularies=("tokenizer.json",),
    pad_token="<pad>",
)

KNOWN_EXPRESSIONS = frozenset(
    {
        " {2,}", " +", r"\s+", r"\n+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    }
)  # fmt: skip
"""Regular expressions that a tokenizer.json may have: those that transformers' converters write
(sentencepiece's blanks, GPT-2, CLIP, Qwen2, Llama 3). Others may take for ever on a short text."""

DISTILBERT = ModelFamily(
    model_type="distilbert",
    title="DistilBERT",
    architecture="DistilBertForSequenceClassification",
    forward="post-norm",
    # Source: transformers' DistilBertConfig.
    defaults={
        "activation": "gelu",
        "attention_dropout": 0.1,
        "dim": 768,
        "dropout": 0.1,
        "hidden_dim": 3072,
        "initializer_range": 0.02,
        "max_position_embeddings": 512,
        "model_type": "distilbert",
        "n_heads": 12,
        "n_layers": 6,
        "pad_token_id": 0,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "vocab_size": 30522,
    },
    keys=SizeKeys(
        width="dim",
        inner="hidden_dim",
        heads="n_heads",
        layers="n_layers",
        vocabulary="vocab_size",
        positions="max_position_embeddings",
    ),
    dropouts=DropoutKeys(
        hidden="dropout", attention="attention_dropout", classifier="seq_classif_dropout"
    ),
    activation="activation",
    activations=("gelu", "gelu_new", "relu", "silu"),  # what DistilBertConfig documents
    norm_epsilon=1e-12,
    # Source: transformers' DistilBertForSequenceClassification.
    prefix="distilbert.",
    encoder=("embeddings.", "transformer."),
    embeddings="embeddings.",
    word_table="word_embeddings",
    position_table="position_embeddings",
    embeddings_norm="LayerNorm",
    layers="transformer.layer.",
    layer=LayerNames(
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attended="attention.out_lin",
        attention_norm="sa_layer_norm",
        inner="ffn.lin1",
        outer="ffn.lin2",
        output_norm="output_layer_norm",
    ),
    head=("pre_classifier", "classifier"),
    other_heads=("vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "qa_outputs."),
    tokenizer=WORDPIECE,
    tokenizer_class="DistilBertTokenizer",
    inputs=("input_ids", "attention_mask"),  # no token types, which BertTokenizer returns too
    hub_owner="distilbert",
    hub_models={
        "distilbert-base-uncased": {},
        "distilbert-base-cased": {"vocab_size": 28996},
        "distilbert-base-german-cased": {"vocab_size": 31102},
        "distilbert-base-multilingual-cased": {"vocab_size": 119547},
    },
)

_BERT_DEFAULTS = {  # of transformers' BertConfig, and of what is made after it
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "is_decoder": False,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
_LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
}

BERT = ModelFamily(
    model_type="bert",
    title="BERT",
    architecture="BertForSequenceClassification",
    forward="post-norm",
    defaults=_BERT_DEFAULTS | {"model_type": "bert"},
    keys=SizeKeys(
        width="hidden_size",
        inner="intermediate_size",
        heads="num_attention_heads",
        layers="num_hidden_layers",
        vocabulary="vocab_size",
        positions="max_position_embeddings",
        token_types="type_vocab_size",
    ),
    dropouts=DropoutKeys(
        hidden="hidden_dropout_prob",
        attention="attention_probs_dropout_prob",
        classifier="classifier_dropout",
    ),
    activation="hidden_act",
    activations=DISTILBERT.activations,
    epsilon_key="layer_norm_eps",
    fixed={"position_embedding_type": "absolute", "is_decoder": False},
    attended_dropout=True,
    head_activation="tanh",
    # Source: transformers' BertForSequenceClassification.
    prefix="bert.",
    encoder=("embeddings.", "encoder.", "pooler."),
    embeddings="embeddings.",
    word_table="word_embeddings",
    position_table="position_embeddings",
    token_type_table="token_type_embeddings",
    embeddings_norm="LayerNorm",
    layers="encoder.layer.",
    layer=LayerNames(
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        attended="attention.output.dense",
        attention_norm="attention.output.LayerNorm",
        inner="intermediate.dense",
        outer="output.dense",
        output_norm="output.LayerNorm",
    ),
    pooler="pooler.dense",
    head=("classifier",),
    other_heads=("cls.", "qa_outputs."),
    tokenizer=WORDPIECE,
    tokenizer_class="BertTokenizer",
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    hub_owner="google-bert",
    hub_models={
        "bert-base-uncased": {},
        "bert-base-cased": {"vocab_size": 28996},
        "bert-large-uncased": _LARGE,
        "bert-large-cased": _LARGE | {"vocab_size": 28996},
        "bert-base-multilingual-cased": {"vocab_size": 119547},
        "bert-base-chinese": {"vocab_size": 21128},
    },
)

_FAIRSEQ = {  # what differs from the class's defaults in the models of RoBERTa's authors
    "layer_norm_eps": 1e-5, "max_position_embeddings": 514, "type_vocab_size": 1,
}  # fmt: skip

ROBERTA = dataclasses.replace(
    BERT,
    model_type="roberta",
    title="RoBERTa",
    architecture="RobertaForSequenceClassification",
    # Source: transformers' RobertaConfig, whose sizes are not roberta-base's.
    defaults=_BERT_DEFAULTS
    | {"bos_token_id": 0, "eos_token_id": 2, "model_type": "roberta", "pad_token_id": 1},
    padding_key="pad_token_id",
    head_dropout_first=True,
    # Source: transformers' RobertaForSequenceClassification, whose encoder has no pooler.
    prefix="roberta.",
    encoder=("embeddings.", "encoder."),
    pooler="",
    head=("classifier.dense", "classifier.out_proj"),
    other_heads=("lm_head.", "pooler.", "qa_outputs."),
    tokenizer=BPE,
    tokenizer_class="RobertaTokenizer",
    inputs=("input_ids", "attention_mask"),
    hub_owner="FacebookAI",
    hub_models={
        "roberta-base": _FAIRSEQ | {"vocab_size": 50265},
        "roberta-large": _FAIRSEQ | _LARGE | {"vocab_size": 50265},
    },
)

XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    model_type="xlm-roberta",
    title="XLM-RoBERTa",
    architecture="XLMRobertaForSequenceClassification",
    defaults=ROBERTA.defaults | {"model_type": "xlm-roberta"},
    tokenizer=UNIGRAM,
    tokenizer_class="XLMRobertaTokenizer",
    hub_models={
        "xlm-roberta-base": _FAIRSEQ | {"vocab_size": 250002},
        "xlm-roberta-large": _FAIRSEQ | _LARGE | {"vocab_size": 250002},
    },
)

VIT = ImageFamily(
    model_type="vit",
    title="ViT",
    architecture="ViTForImageClassification",
    forward="vision",
    frameworks=("torch",),
    # Source: transformers' ViTConfig. Its classifier has no dropout; ours has one if it is asked.
    defaults={
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.0,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "hidden_size": 768,
        "image_size": 224,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-12,
        "model_type": "vit",
        "num_attention_heads": 12,
        "num_channels": 3,
        "num_hidden_layers": 12,
        "patch_size": 16,
        "qkv_bias": True,
    },
    keys=dataclasses.replace(BERT.keys, vocabulary="", positions="", token_types=""),
    dropouts=dataclasses.replace(BERT.dropouts, classifier="classifier_dropout_prob"),
    activation=BERT.activation,
    activations=BERT.activations,
    epsilon_key=BERT.epsilon_key,
    # Source: transformers' ViTForImageClassification.
    prefix="vit.",
    encoder=("embeddings.", "encoder.", "layernorm."),
    embeddings="embeddings.",
    position_table="position_embeddings",
    layers="encoder.layer.",
    layer=LayerNames(
        query="attention.attention.query",
        key="attention.attention.key",
        value="attention.attention.value",
        attended="attention.output.dense",
        attention_norm="layernorm_before",
        inner="intermediate.dense",
        outer="output.dense",
        output_norm="layernorm_after",
    ),
    head=("classifier",),
    other_heads=("pooler.", "decoder.", "embeddings.mask_token"),
    image_size="image_size",
    patch_size="patch_size",
    channels="num_channels",
    class_token="cls_token",
    projection="patch_embeddings.projection",
    final_norm="layernorm",
    fixed={"qkv_bias": True, "num_channels": 3},
    hub_owner="google",
    hub_models={
        "vit-base-patch16-224": {},
        "vit-base-patch16-224-in21k": {},
        "vit-base-patch32-384": {"image_size": 384, "patch_size": 32},
    },
)

FAMILIES: dict[str, ModelFamily] = {
    family.model_type: family for family in (DISTILBERT, BERT, ROBERTA, XLM_ROBERTA, VIT)
}
"""{model_type: family}"""

TOKENIZERS: dict[str, TokenizerKind] = {
    family.tokenizer.algorithm: family.tokenizer
    for family in FAMILIES.values()
    if family.kind == "text"
}
"""{algorithm: tokenizer}"""

TOKENIZER_FILES: tuple[str, ...] = tuple(
    dict.fromkeys(name for kind in TOKENIZERS.values() for name in kind.files)
)
"""Files that a tokenizer of some family may consist of."""

IMAGE_FILES: tuple[str, ...] = ("preprocessor_config.json",)
"""What an image family's model has in place of a tokenizer."""


def family_of(config: object, *, where: str = "config.json") -> ModelFamily:
    """The family of a model by the model_type of its config.json.

    Raises:
        ModelError: it is not one of FAMILIES.
    """
    model_type = config.get("model_type") if isinstance(config, Mapping) else None
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        example = next(name for family in FAMILIES.values() for name in family.hub_models)
        raise ModelError(
            "the model is of a family that is not known",
            where=where,
            expected=f"model_type {' or '.join(FAMILIES)}",
            got=f"model_type {model_type}",
            remedy=f"take a {known_titles()}, e.g. {example}",
        )
    return family


def known_titles() -> str:
    """The families, for messages."""
    return " or ".join(family.title for family in FAMILIES.values())


def hub_config(name: str) -> dict[str, Any] | None:
    """The config.json of a family's own model on the hub, without asking it; None: not known.

    >>> hub_config("distilbert-base-cased")["vocab_size"]
    28996
    """
    for family in FAMILIES.values():
        fields = family.hub_models.get(name.removeprefix(f"{family.hub_owner}/"))
        if fields is not None:
            return family.complete(fields)
    return None
