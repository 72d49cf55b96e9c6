"""A tiny DistilBERT on disk: two layers, random weights, a real WordPiece vocabulary.

Tests where learning is not the point train this one; it is the same bytes at every call.
"""

from __future__ import annotations

import json
import os
import string

import numpy as np
from safetensors.numpy import save_file

from howdah.data.family import DISTILBERT

_WORDS = """
the of and in to was he is as for on with that it his by at from her she you had an were but be
this are not my they one which or have him me first all also their has up who out been when after
there into new two its time would no what about said we over then other so more can if like back
them only some could where just during before do made school through than now years most world may
between down well three year while will later city under around did such being used state people
part know against your many second university both national these don known off way until re how
even get head didn team american because de born united film since still long work south us became
any high again day family see right man eyes house season war states including took life north
same each called name much place however go four group another found won area here going away
series left home music best make hand number company several never last john very album take end
good too following released game played little began district old want those side held own early
county ll league use west face think government march came small general town june line based
something september thought looked along international air july club went january october our
august april york few east show member college father public come men five set station church next
former november room party located december age got system let love though every look song water
century without body black night within great women single ve building large population river
named band white started once should service top built british open death king moved local times
children february book why door need president order final road wasn although due major died
village third knew asked turned st wanted say together received main son served different behind
himself felt members power football law voice play near park history having saw mother army point
front help english street art late hands games award young put published country division across
told often ever french london center six red led days include light find tell among species really
according central half form original gave office making enough lost full opened must included live
given german player run business woman community cup might million land court development short
round ii km seen class story always become sure research almost director council la career things
using island couldn car close force better free support control field students education married
nothing worked others record big inside level anything continued give james military established
non returned feel does title written thing feet william far co association hard already
championship human western department hall role various production heart living fire version
television royal produced working act case society region present radio period looking least total
keep england wife program per brother mind special am works soon political george services taken
created further able reached david union joined upon done important social information either
appeared position ground lead rock dark election board france hair course arms site police girl
instead real sound words moment someone summer project announced san less wrote past followed blue
founded al finally india taking records america design considered northern god stop battle toward
european outside described track today playing language call heard professional low australia
miles california win yet green trying blood southern science maybe everything match square mouth
video race recorded leave above daughter points space museum change middle common move tv post
lake seven tried elected closed ten paul minister months start chief return canada person sea
release similar modern brought rest hit formed mr floor event doing thomas robert care killed
training star week needed turn finished railway rather news function value list method object
string array data type model file error default true false none index key parameter input output
path example test
"""
_PIECES = """
ing ed er ly es on us an en in man al ia is ra na ers le ic te ne ie ton ta th la ness ch um da ry
ma rs el re os ar ka ist ian or ism ling ity as ley ted ng ville able ri ies land ur ya ine de ki
ts ro less ey ion ha am ter ge ll se st ation nt son et ce to ting ble ke ni tion ham ive do ca
men ized ous va id co ck ns no ga li ment ba ner ko ate io wood led ty ve sa by ier ti field ford
ja ler ally ina ization ful go il at hi berg der sh rd lin lo ot za me ius line den it wa ad ite
que ard les ff tor age di ir mi est ria ze well ated ee ah ji ov pa ish ps tes lla way house tic
ger un ant burg ura town ding tte ping ize ay ging ol ss ent tt be ky ak ial han per nd ls ai au
ny ring ut bury kin ron head ow ium mer pe sen ong ised bo ds ists ries dy ana worth ide ea ms nes
don ku gan mo pur ul si rt ell om he ure ara che ney zed chi ik ker ski ini ran tone ica jo
"""
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_POSITION = 128


def words() -> list[str]:
    """The whole words of the vocabulary."""
    return _WORDS.split()


def vocabulary() -> list[str]:
    """The pieces in the order of their ids: specials, characters, ##characters, words, ##pieces."""
    characters = [*string.punctuation, *string.digits, *string.ascii_lowercase]
    continued = ["##" + c for c in string.digits + string.ascii_lowercase]
    pieces = [*SPECIAL_TOKENS, *characters, *continued, *_WORDS.split()]
    return list(dict.fromkeys([*pieces, *("##" + piece for piece in _PIECES.split())]))


def write_tiny_model(
    directory: str, *, seed: int = 0, n_layers: int = 2, dim: int = 32, hidden_dim: int = 64
) -> str:
    """Write config.json, model.safetensors and the tokenizer's files; returns `directory`."""
    os.makedirs(directory, exist_ok=True)
    pieces = vocabulary()
    config = {
        "activation": "gelu",
        "architectures": ["DistilBertModel"],
        "attention_dropout": 0.1,
        "dim": dim,
        "dropout": 0.1,
        "hidden_dim": hidden_dim,
        "initializer_range": 0.05,
        "max_position_embeddings": MAX_POSITION,
        "model_type": "distilbert",
        "n_heads": 2,
        "n_layers": n_layers,
        "pad_token_id": 0,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "vocab_size": len(pieces),
    }
    _write_json(directory, "config.json", config)
    save_file(
        tiny_weights(config, seed),
        os.path.join(directory, "model.safetensors"),
        metadata={"format": "pt"},
    )
    with open(os.path.join(directory, "vocab.txt"), "w", encoding="utf-8") as file:
        file.write("".join(piece + "\n" for piece in pieces))
    with open(os.path.join(directory, "tokenizer.json"), "w", encoding="utf-8") as file:
        file.write(tokenizer_json(pieces))
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL_TOKENS, strict=True))
    tokens = {f"{key}_token": token for key, token in names.items()}
    _write_json(directory, "special_tokens_map.json", tokens)
    _write_json(
        directory,
        "tokenizer_config.json",
        {
            "do_lower_case": True,
            "model_max_length": MAX_POSITION,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "tokenizer_class": "DistilBertTokenizer",
            **tokens,
        },
    )
    return directory


def tiny_weights(config: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Random encoder weights under Hugging Face's torch names (with the distilbert. prefix)."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in DISTILBERT.encoder_shapes(config).items():
        if name.lower().endswith(("layernorm.weight", "layer_norm.weight")):
            weights[name] = np.ones(shape, np.float32)
        elif name.endswith("bias"):
            weights[name] = np.zeros(shape, np.float32)
        else:
            weights[name] = (rng.standard_normal(shape) * 0.05).astype(np.float32)
    return weights


def tokenizer_json(pieces: list[str]) -> str:
    """A WordPiece tokenizer of BERT's kind with these pieces."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    numbers = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])],
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer.to_str(pretty=True)


def _write_json(directory: str, name: str, content: dict) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, sort_keys=True)
        file.write("\n")
