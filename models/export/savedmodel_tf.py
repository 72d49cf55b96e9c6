"""Writes an export's saved_model/ in a separate process, since a process holds one framework.

    python -m howdah.models.export.savedmodel_tf DIRECTORY PROBES LOGITS

DIRECTORY is a local export; PROBES is an .npz of batches (ids_0, mask_0, ids_1, ...). The written
SavedModel is read back, and its logits for the batches go to the .npz LOGITS (logits_0, ...).
"""

from __future__ import annotations

import os
import sys

import numpy as np

from howdah import storage
from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.data.inputs import encoder_of_model
from howdah.models.export.formats import SAVED_MODEL
from howdah.models.export_info import read_config, read_info
from howdah.models.weights.pretrained import label_names_of, load_base
from howdah.process import env
from howdah.process.quiet import starting_tensorflow

INPUTS, OUTPUT = ("input_ids", "attention_mask"), "logits"


def main(directory: str, probes: str, logits: str) -> None:
    """Write saved_model/ into an export, then the logits that it computes for the batches."""
    env.prepare("tensorflow")
    with starting_tensorflow():
        import tensorflow as tf
    from howdah.models.forward import forward_tf

    info = read_info(directory)
    labels = label_names_of(read_config(directory)) or []
    base = load_base(directory, label_names=labels)
    encoder = encoder_of_model(base.config, base.tokenizer_files, directory)
    net = forward_tf.build(
        base.config,
        base.weights,
        num_labels=len(labels),
        training=TrainingSection(framework="tensorflow", precision="fp32"),
        model=ModelSection(),
        first_type_ends=encoder.first_type_ends if info.get("pairs") else None,
    )
    specs = [tf.TensorSpec([None, None], tf.int32, name=name) for name in INPUTS]

    @tf.function(input_signature=specs, autograph=False)
    def serving_default(input_ids, attention_mask):
        return {OUTPUT: net(input_ids, attention_mask)}

    module = tf.Module()
    module.variables_by_name = list(net.variables.values())  # saves the variables reachable here
    module.serve = serving_default
    target = os.path.join(storage.local_path(directory), SAVED_MODEL)
    tf.saved_model.save(module, target, signatures={"serving_default": serving_default})
    read = tf.saved_model.load(target).signatures["serving_default"]
    batches = np.load(probes)
    logits_by_name = {}
    for number in range(len(batches.files) // 2):
        batch = {
            name: tf.constant(batches[f"{short}_{number}"], tf.int32)
            for name, short in zip(INPUTS, ("ids", "mask"), strict=True)
        }
        logits_by_name[f"logits_{number}"] = read(**batch)[OUTPUT].numpy()
    np.savez(logits, **logits_by_name)


if __name__ == "__main__":
    main(*sys.argv[1:])
