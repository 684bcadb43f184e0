"""A local seqio task for ``t5x.infer``: a few English sentences, with the bundled vocabulary."""

import seqio
import tensorflow as tf

from specdec.checkpoints import find_vocabulary
from specdec.checkpoints.loading import resolve

VOCABULARY = str(find_vocabulary(resolve("quickstart", "target")))
TEXTS = [
    "The house is small.",
    "Where is the station?",
    "I would like a cup of coffee.",
    "My brother lives in the north of the country and works there.",
    "It rains.",
]
FEATURES = {
    name: seqio.Feature(seqio.SentencePieceVocabulary(VOCABULARY), add_eos=True)
    for name in ("inputs", "targets")
}


def _dataset(split, shuffle_files, seed=None):
    del split, shuffle_files, seed
    return tf.data.Dataset.from_tensor_slices({"inputs": TEXTS, "targets": [""] * len(TEXTS)})


seqio.TaskRegistry.add(
    "five_sentences",
    source=seqio.FunctionDataSource(_dataset, splits=["test"]),
    preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
    output_features=FEATURES,
)
