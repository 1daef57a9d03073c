"""What TFRecord, ArrayRecord and TFDS folders have in common: frames, chunks and ``tf.Example``."""
