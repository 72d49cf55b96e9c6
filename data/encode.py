"""Text to token ids: one encoder for the ETL and for serving.

It uses the `tokenizers` library directly, as `transformers`' fast tokenizers do, and is made from
bytes, so that Spark executors need neither a framework nor the model's directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from howdah.data import modelfiles
from howdah.data.clean import PAIR
from howdah.data.family import KNOWN_EXPRESSIONS, TOKENIZER_FILES, TOKENIZERS, UNIGRAM, WORDPIECE
from howdah.data.manifest import content_hash
from howdah.errors import ModelError

# Spark and training run one process a core; the library's threads would compete for the cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_PREFIX_CHARACTERS_PER_TOKEN = 6
_WORD_END = re.compile(r"[ !-/:-@\[-`{-~\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]")
"""BERT's chain begins a new word at each of them: a blank and some punctuation."""
_EXPRESSION = "remove its pre-tokenizer's expression, or use another tokenizer"
_CHUNK_CHARACTERS = 131_072
"""Characters that are tokenized at once: an encoding takes some 400 bytes for a token, also for
those that are cut off."""


def most_characters(max_length: int) -> int:
    """How much of a text is encoded: 64 characters for each token, and 65,536 at least.

    What comes later could matter only if the beginning had fewer than `max_length` tokens. Texts of
    that length are above data.quality.max_characters' default, so that no dataset has them.
    """
    return max(65_536, 64 * max_length)


class Encoder:
    """A tokenizer's ids with its special tokens ([CLS] and [SEP], or <s> and </s>), truncated, not
    padded: WordPiece, byte-level BPE, Unigram, or whatever a `tokenizer.json` holds.

    Args:
        files: {file name: bytes} of a model directory: `tokenizer.json`; or `vocab.txt`
            (WordPiece), or `vocab.json` and `merges.txt` (byte-level BPE); with
            `tokenizer_config.json`, which may be missing.
        source: path or hub name of the model, for messages and the manifest.

    Raises:
        ModelError: no tokenizer among the files, or one that cannot be used.
    """

    def __init__(self, files: dict[str, bytes], source: str) -> None:
        self.files = {name: files[name] for name in TOKENIZER_FILES if name in files}
        self.source = source
        remedy = "restore its files, or take the tokenizer of the base model's publisher"
        damaged = (TypeError, ValueError, KeyError, IndexError, AttributeError)
        with _model_errors("the base model's tokenizer cannot be used", source, remedy, *damaged):
            self._open(sorted(files), source)

    def _open(self, names: Sequence[str], source: str) -> None:
        settings = _json(self.files, "tokenizer_config.json", source)
        if "tokenizer.json" in self.files:
            self._tokenizer = _from_json(self.files["tokenizer.json"], settings, source)
        elif "vocab.txt" in self.files:
            self._tokenizer = _from_vocab(self.files["vocab.txt"], settings, source)
        elif "vocab.json" in self.files and "merges.txt" in self.files:
            self._tokenizer = _from_merges(self.files, settings, source)
        else:
            raise ModelError(
                "the base model has no tokenizer",
                where=source,
                expected="tokenizer.json, or vocab.txt, or vocab.json and merges.txt",
                got=", ".join(names) or "neither",
                remedy="save the fast tokenizer beside the weights, which writes tokenizer.json:"
                " AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            )
        state = json.loads(self._tokenizer.to_str())
        self.hash: str = content_hash(
            {key: state[key] for key in sorted(state) if key not in ("truncation", "padding")}
        )
        """Hash of the whole tokenizer but its maximal length: equal hashes give equal ids."""
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        # A tokenizer of no known family must name its padding token, or have WordPiece's.
        kind = TOKENIZERS.get(state["model"]["type"], WORDPIECE)
        self.pad_id: int = self._pad_id(settings, kind.pad_token)
        # User text that spells [MASK] or [SEP] is text: it must never become the special token.
        if state["model"]["type"] == UNIGRAM.algorithm:
            self._tokenizer = _without_special_pieces(state)
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._cls_sep = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        self._max_length: int | None = None
        self.unknown_id: int | None = _unknown_id(state["model"])
        """What the vocabulary cannot spell becomes this token; None: it can spell everything."""
        pair = self._tokenizer.encode("a", "b")
        marks = zip(pair.ids, pair.special_tokens_mask, strict=True)
        self.special_ids = tuple(sorted({self.pad_id, *(one for one, mark in marks if mark)}))
        """Tokens around texts, and padding."""
        at = pair.type_ids.index(1) if 1 in pair.type_ids else None
        self.first_type_ends: int | None = None if at is None else pair.ids[at - 1]
        """The token that ends the first text of a pair: all behind it have token type 1. None:
        all tokens have type 0, as RoBERTa's. No text can hold it (see `encode_special_tokens`)."""
        # If the text is split at blanks first, the tokens of its beginning do not depend on what
        # follows: true for BERT's chain without added tokens, which may contain blanks.
        self._prefix_stable = (
            (state.get("normalizer") or {}).get("type") == "BertNormalizer"
            and (state.get("pre_tokenizer") or {}).get("type") == "BertPreTokenizer"
            and all(token.get("special") for token in state.get("added_tokens", []))
        )

    @classmethod
    def load(cls, base: str, revision: str | None = None) -> Encoder:
        """The encoder of a base model: a directory, one on another storage, or a hub name."""
        return cls(modelfiles.read(base, TOKENIZER_FILES, revision), base)

    def encode(self, texts: Sequence[str], max_length: int) -> list[np.ndarray]:
        """Token ids of each text, special tokens included, cut at `max_length`, not padded.

        Args:
            texts: B texts.
            max_length: tokens a text is cut at, special tokens included.

        Returns:
            B arrays, uint32, each 1-D of at least the special tokens' length.

        Worked example (bert-base-uncased): "hello world" -> [101, 7592, 2088, 102].
        """
        self._truncate(max_length)
        limit = max_length * _PREFIX_CHARACTERS_PER_TOKEN
        texts = [text[: most_characters(max_length)] for text in texts]
        heads = [_valid(self._head(text, limit)) for text in texts]
        ids = self._encode(heads)
        # A head with max_length tokens has the ids of the whole text; else encode the whole text.
        again = [
            i
            for i, (text, head) in enumerate(zip(texts, heads, strict=True))
            if len(head) < len(text) and len(ids[i]) < max_length
        ]
        if again:
            whole = self._encode([_valid(texts[i]) for i in again])
            for i, ids_T in zip(again, whole, strict=True):
                ids[i] = ids_T
        return ids

    def encode_pairs(self, pairs: Sequence[tuple[str, str]], max_length: int) -> list[np.ndarray]:
        """Token ids of each pair: [CLS] a [SEP] b [SEP], the longer text cut first, not padded.

        The ids are those of transformers' `tokenizer(a, b, truncation="longest_first")`. Texts are
        encoded whole: what is kept of one side depends on the length of the other.

        Args:
            pairs: B pairs of texts.
            max_length: tokens a pair is cut at, special tokens included.

        Returns:
            B arrays, uint32, each 1-D.
        """
        self._truncate(max_length)
        most = most_characters(max_length)
        return self._encode(
            [(_valid(first[:most]), _valid(second[:most])) for first, second in pairs]
        )

    def encode_rows(
        self, texts: Sequence[str], max_length: int, *, pairs: bool
    ) -> list[np.ndarray]:
        """`encode` of texts, or `encode_pairs` of joined ones (data/clean.py)."""
        if not pairs:
            return self.encode(texts, max_length)
        sides = [text.partition(PAIR) for text in texts]
        return self.encode_pairs([(first, second) for first, _, second in sides], max_length)

    def decode(self, ids: np.ndarray, *, pairs: bool) -> str:
        """The text that a row's ids stand for, special tokens left out; of a pair both, joined
        (data/clean.py). Case, blanks and rare characters may not be the original's.
        """
        if not pairs:
            return self._tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        ends = np.flatnonzero(ids == ids[-1])[:1]  # no text can hold the token that ends it
        sides = np.split(ids, ends)
        return PAIR.join(
            self._tokenizer.decode(s.tolist(), skip_special_tokens=True) for s in sides
        )

    def _encode(self, texts: Sequence[Any]) -> list[np.ndarray]:
        """Ids of texts or of pairs, some characters at a time.

        Raises:
            ModelError: the library failed.
        """
        encoded: list[np.ndarray] = []
        for chunk in _chunks(texts):
            with _model_errors("the tokenizer failed on a text", self.source, _EXPRESSION):
                encodings = self._tokenizer.encode_batch_fast(chunk, add_special_tokens=True)
            encoded += [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        return encoded

    def _truncate(self, max_length: int) -> None:
        if max_length == self._max_length:
            return
        if max_length <= self._cls_sep:
            raise ModelError(
                "max_length leaves no room for text",
                got=f"{max_length} tokens, {self._cls_sep} of them special",
                remedy="raise data.max_length",
            )
        self._tokenizer.enable_truncation(max_length)
        self._max_length = max_length

    def _head(self, text: str, limit: int) -> str:
        """The beginning of a long text up to the end of a word, at least `limit` characters; or all
        of it."""
        if not self._prefix_stable or len(text) <= limit:
            return text
        end = _WORD_END.search(text, limit)
        return text if end is None else text[: end.start()]

    def _pad_id(self, settings: dict, default: str) -> int:
        token = settings.get("pad_token", default)
        token = token.get("content", default) if isinstance(token, dict) else token
        number = self._tokenizer.token_to_id(token) if token else None
        if number is None:
            raise ModelError(
                "the tokenizer has no pad_token",
                where=self.source,
                expected=str(token),
                remedy="give the tokenizer of a BERT or RoBERTa, or name the token in"
                " tokenizer_config.json",
            )
        return number


@contextlib.contextmanager
def _model_errors(what: str, source: str, remedy: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise ModelErrors instead of these errors and those of the tokenizers library."""
    try:
        yield
    except BaseException as error:
        # The library raises bare Exceptions, and panics, which are not Exceptions to Python.
        by_library = type(error) is Exception or type(error).__name__ == "PanicException"
        if not by_library and not isinstance(error, kinds):
            raise
        got = f"{type(error).__name__}: {error}"
        raise ModelError(what, where=source, got=got, remedy=remedy) from None


def _chunks(texts: Sequence[Any]) -> Iterator[list[Any]]:
    """The texts, or pairs of them, in lists of at most _CHUNK_CHARACTERS, or one text alone."""
    chunk: list[Any] = []
    characters = 0
    for text in texts:
        length = len(text) if isinstance(text, str) else sum(map(len, text))
        if chunk and characters + length > _CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
        chunk.append(text)
        characters += length
    if chunk:
        yield chunk


def _require_known_expressions(state: Any, source: str) -> None:
    """Refuse a tokenizer with a regular expression that is not one of the published families'.

    The library's engine backtracks: `(a+)+$` takes for ever for thirty letters, or panics.

    Raises:
        ModelError: with the expression.
    """
    pending = [state.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            expression = part.get("Regex")
            if isinstance(expression, str) and expression not in KNOWN_EXPRESSIONS:
                raise ModelError(
                    "tokenizer.json has a regular expression that is not known to be safe",
                    where=source,
                    expected="one of the published families' (data/family.py)",
                    got=expression[:200],
                    remedy="take the tokenizer of the base model's publisher",
                )
            pending += part.values()


def _unknown_id(model: dict) -> int | None:
    if model["type"] == UNIGRAM.algorithm:
        return model.get("unk_id")
    vocabulary, token = model.get("vocab"), model.get("unk_token")
    return vocabulary.get(token) if isinstance(vocabulary, dict) and token is not None else None


def _valid(text: str) -> str:
    """Replace lone surrogates, which have no UTF-8 form, by the replacement character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def _json(files: dict[str, bytes], name: str, source: str) -> dict:
    if name not in files:
        return {}
    try:
        value = json.loads(files[name])
    except ValueError as error:
        raise ModelError(
            f"{name} is not JSON", where=source, got=str(error), remedy="restore the file"
        ) from None
    return value if isinstance(value, dict) else {}


def _normalizer_options(settings: dict) -> dict:
    """BERT's normaliser as `transformers.BertTokenizerFast` reads tokenizer_config.json."""
    return {
        "lowercase": settings.get("do_lower_case", True),
        "strip_accents": settings.get("strip_accents"),
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
    }


def _from_json(data: bytes, settings: dict, source: str):
    from tokenizers import Tokenizer

    try:
        state = json.loads(data)
        _require_known_expressions(state, source)
        # In transformers' BertTokenizerFast.__init__ tokenizer_config.json overrides
        # tokenizer.json; do the same, so that the ids are equal.
        normalizer = state.get("normalizer") or {}
        named = settings.get("tokenizer_class") or ""
        bert = not named or ("Bert" in named and "Roberta" not in named)
        if bert and normalizer.get("type") == "BertNormalizer":
            normalizer.update(_normalizer_options(settings))
        # So does PreTrainedTokenizerFast.__init__, where its constructor is given none too.
        pre_tokenizer = state.get("pre_tokenizer") or {}
        if pre_tokenizer.get("type") == "ByteLevel":
            pre_tokenizer["add_prefix_space"] = bool(settings.get("add_prefix_space", False))
        return Tokenizer.from_str(json.dumps(state))
    except ModelError:
        raise
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise ModelError(
            "tokenizer.json cannot be read",
            where=source,
            got=f"{type(error).__name__}: {error}",
        ) from None


def _from_vocab(data: bytes, settings: dict, source: str):
    from tokenizers import Tokenizer
    from tokenizers.decoders import WordPiece as WordPieceDecoder
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ModelError(
            "vocab.txt is not UTF-8", where=source, got=str(error), remedy="restore the file"
        ) from None
    if lines and lines[-1] == "":
        lines.pop()
    vocabulary = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    special = {
        key: _content(settings.get(f"{key}_token"), f"[{key.upper()}]")
        for key in ("pad", "unk", "cls", "sep", "mask")
    }
    needed = [special[key] for key in ("pad", "unk", "cls", "sep")]
    missing = [token for token in needed if token not in vocabulary]
    if missing:
        raise ModelError(
            "vocab.txt lacks special tokens",
            where=source,
            expected=", ".join(special.values()),
            got="no " + ", ".join(missing),
            remedy="give BERT's vocabulary, or name the tokens in tokenizer_config.json",
        )
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=special["unk"]))
    tokenizer.normalizer = BertNormalizer(clean_text=True, **_normalizer_options(settings))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    cls, sep = special["cls"], special["sep"]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    tokenizer.decoder = WordPieceDecoder(prefix="##")
    tokenizer.add_special_tokens([token for token in special.values() if token in vocabulary])
    return tokenizer


def _from_merges(files: dict[str, bytes], settings: dict, source: str):
    """The tokenizer that transformers' RobertaConverter makes of the same files."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.processors import RobertaProcessing

    special = {
        key: _content(settings.get(f"{key}_token"), token)
        for key, token in (
            ("cls", "<s>"), ("pad", "<pad>"), ("sep", "</s>"), ("unk", "<unk>"), ("mask", "<mask>"),
        )
    }  # fmt: skip
    try:
        vocabulary = {str(token): int(n) for token, n in json.loads(files["vocab.json"]).items()}
        lines = files["merges.txt"].decode("utf-8").split("\n")
        lines = lines[1:] if lines[0].startswith("#version") else lines
        merges = [tuple(line.rstrip("\r").split(" ")) for line in lines if line.strip()]
        missing = [token for key, token in special.items() if key != "mask"]
        missing = [token for token in missing if token not in vocabulary]
        if missing:
            raise ValueError(f"vocab.json has no {', '.join(missing)}")
        prefix = bool(settings.get("add_prefix_space", False))
        tokenizer = Tokenizer(
            BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="")
        )
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=prefix)
        tokenizer.post_processor = RobertaProcessing(
            sep=(special["sep"], vocabulary[special["sep"]]),
            cls=(special["cls"], vocabulary[special["cls"]]),
            add_prefix_space=prefix,
        )
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise ModelError(
            "vocab.json and merges.txt are not a byte-level BPE tokenizer's files",
            where=source,
            expected="{token: id} with "
            + ", ".join(special.values())
            + ", and a pair in each line",
            got=f"{type(error).__name__}: {error}",
            remedy="restore the files, or name the special tokens in tokenizer_config.json",
        ) from None
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([token for token in special.values() if token in vocabulary])
    return tokenizer


def _without_special_pieces(state: dict):
    """A Unigram tokenizer that finds no special token in a text.

    They are pieces of its model: with `encode_special_tokens` alone the model finds "</s>" in a
    text as one piece. Sentencepiece, for which the models were made, does not. Here their pieces
    have names that no text holds: Metaspace leaves no blank. Ids and scores stay.
    """
    from tokenizers import Tokenizer

    pieces = state["model"]["vocab"]
    special = {token["content"] for token in state["added_tokens"] if token["special"]}
    special &= {piece for piece, _ in pieces}
    state["model"]["vocab"] = [
        [f" special {piece}" if piece in special else piece, score] for piece, score in pieces
    ]
    # Else they would get new ids: what follows a text has its ids from the post-processor.
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] not in special]
    return Tokenizer.from_str(json.dumps(state))


def _content(token, default: str) -> str:
    if isinstance(token, dict):
        return token.get("content", default)
    return token or default
