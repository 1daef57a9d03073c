"""The base of TFRecord, ArrayRecord and TFDS folders: frames, chunks and ``tf.Example``."""
