"""What rows are made of: the encoder of each kind (data.kind), text or image.

Both have files, source, hash, vocab_size and pad_id, so that dataset, manifest and checks need not
know which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from howdah.config.data import InputKind
from howdah.data.encode import Encoder
from howdah.data.family import family_of
from howdah.data.images import ImageEncoder

AnyEncoder = Encoder | ImageEncoder

ENCODERS: dict[InputKind, type[Encoder] | type[ImageEncoder]] = {
    "text": Encoder,
    "image": ImageEncoder,
}
"""{kind of input: its encoder}"""

_made: dict[tuple[InputKind, str], AnyEncoder] = {}


def encoder_of_files(
    kind: InputKind, files: Mapping[str, bytes], source: str, key: str
) -> AnyEncoder:
    """An encoder from its own `files` and `source`, made once in a process: the last one is kept.

    Args:
        key: its hash.
    """
    if (kind, key) not in _made:
        _made.clear()
        _made[kind, key] = ENCODERS[kind](files, source)
    return _made[kind, key]


def encoder_of_model(config: Mapping, files: Mapping[str, bytes], source: str) -> AnyEncoder:
    """The encoder of a loaded model.

    Args:
        config: its config.json.
        files: its tokenizer's or image processor's files by name.
    Raises:
        ModelError: the files are missing or cannot be used.
    """
    if family_of(config).kind == "image":
        return ImageEncoder.of_model(config, files, source)
    return Encoder(dict(files), source)
