"""Chats and prompts as tokens, with a mask of those to train on.

Records hold messages, or texts; the stages here hand them to a tokenizer of Hugging Face's, or to
any object with the same methods, and find out which of the tokens are the model's own.  A mask that
would train on nothing, or on the wrong turns, is an error that names the record and the message.

>>> import loaderx as lx
>>> class Letters:  # in place of AutoTokenizer.from_pretrained(...)
...     eos_token_id = 0
...     def encode(self, text, add_special_tokens=True):
...         return list(text.encode())
>>> ds = lx.Dataset.from_source([{"prompt": "2+3=", "completion": "5"}])
>>> record = ds.map(lx.text.completion(Letters()))[0]
>>> record["tokens"].tolist(), record["loss_mask"].astype(int).tolist()
([50, 43, 51, 61, 53, 0], [0, 0, 0, 0, 1, 1])

The leaves are ``tokens``, int32, and ``loss_mask``, bool: ``True`` where a token is to be learned.
`Dataset.pack` takes them as ``pack({"tokens": 4096, "loss_mask": "tokens"})``.  This module is
imported when it is first used, and needs no other package.
"""

from loaderx.text.stages import chat, completion, preference

__all__ = ["chat", "completion", "preference"]


def __dir__() -> list[str]:
    return __all__
