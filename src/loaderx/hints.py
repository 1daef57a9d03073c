"""Names that other libraries use, and what to write here.

Users of PyTorch, tf.data, Hugging Face datasets and Grain try the names that they know.  A name
that means the same here works; for the others the error says what to write.  `attribute_error` and
`advised` are what other modules call; the rest of this file is tables.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from loaderx.errors import ArgumentTypeError, warn_user

P = ParamSpec("P")
R = TypeVar("R")

_RUN = "Options of running go to DataLoader(ds, engine=..., num_workers=..., prefetch=...)."
_MAP = 'Write .map(f), such as .map(lambda r: {"x": r["pixels"]}).'
_KEEP = "Write ds.save(folder), and Dataset.open(folder) to read it."
_OPEN = "Write Dataset.open(path)."
_NUMPY = "Elements are NumPy arrays; DataLoader(ds, sharding=device) makes them jax.Arrays."
_MIX = "Write Dataset.mix([a, b], weights=[3, 1])."
_SPLIT = "Write .split(0.8, 0.2)."
_PAD = 'Write .batch(n, pad_to={"tokens": 512}), .pack({"tokens": 512}) or .bucket(...).'
_STATE = "A position belongs to an iterator: it = iter(loader), then it.get_state()."
_RECORDS = "Write Dataset.from_source(records), or Dataset.from_arrays(x=..., y=...) for columns."
_ITERABLE = "Write Dataset.from_iterable(function), where the function gives a new iterator."

DATASET = {
    "add_column": "Write Dataset.zip({...}), or .map_with_index(f).",
    "as_numpy_iterator": "Iterate over it, or over DataLoader(ds): elements are NumPy arrays.",
    "bucket_by_sequence_length": "Write .bucket(boundaries, batch_sizes).",
    "cardinality": "Write len(ds).",
    "cast": _MAP,
    "cast_column": _MAP,
    "choose_from_datasets": _MIX,
    "class_encode_column": _MAP,
    "column_names": "Write ds.element_spec.",
    "enumerate": "Write .map_with_index(f), where f(index, element), or enumerate(loader).",
    "features": "Write ds.element_spec.",
    "from_csv": _OPEN,
    "from_dict": "Write Dataset.from_arrays(x=..., y=...), or from_arrays(a_dict).",
    "from_generator": _ITERABLE,
    "from_file": _OPEN,
    "from_json": _OPEN,
    "from_list": _RECORDS,
    "from_pandas": "Write Dataset.from_arrays(frame).",
    "from_parquet": _OPEN,
    "from_polars": "Write Dataset.from_arrays(frame).",
    "from_tensor_slices": "Write Dataset.from_arrays(x, y), or from_arrays(x=..., y=...).",
    "from_tensors": "Write Dataset.from_source([element]).",
    "from_text": _OPEN,
    "get_single_element": "Write ds[0].",
    "group_by_window": "Write .bucket(boundaries, batch_sizes).",
    "ignore_errors": 'Write .on_error("skip").',
    "iloc": "Write ds[i], ds[start:stop], ds[indices] or ds[mask].",
    "interleave": f"{_MIX} .flat_map(f) makes several records of one.",
    "iter": "Write .batch(n), and iterate over it or over DataLoader(ds).",
    "list_files": "Write Dataset.from_source(sorted(glob.glob(pattern))).",
    "load": _KEEP,
    "load_state_dict": _STATE,
    "mp_prefetch": 'Write DataLoader(ds, engine="processes", num_workers=...).',
    "next": "Write ds[0], or next(iter(ds)).",
    "num_rows": "Write len(ds).",
    "options": _RUN,
    "padded_batch": _PAD,
    "prefetch": f"A DataLoader loads ahead by itself. {_RUN}",
    "ragged_batch": _PAD,
    "random_split": _SPLIT,
    "rebatch": "Write .unbatch().batch(n).",
    "reduce": "Loop over the dataset, or over DataLoader(ds).",
    "remove_columns": _MAP,
    "rename": _MAP,
    "rename_column": _MAP,
    "rename_columns": _MAP,
    "sample_from_datasets": _MIX,
    "scan": "Loop over the dataset, or over DataLoader(ds).",
    "select": "Write ds[indices], ds[start:stop] or ds[mask].",
    "select_columns": _MAP,
    "set_format": _NUMPY,
    "set_transform": "Write .map(f).",
    "shape": "len(ds) is the number of elements, ds.element_spec has the shapes of one.",
    "shard": "Write DataLoader(ds, shard=(index, count)), or ds[index::count].",
    "slice": "Write ds[start:stop].",
    "snapshot": _KEEP,
    "sort": "Write ds[np.argsort(keys)].",
    "source": "Write Dataset.from_source(source).",
    "state_dict": _STATE,
    "take_while": "Write .take(n), or leave the loop with break.",
    "to_dict": "Iterate over it: list(ds).",
    "to_iter_dataset": "Write DataLoader(ds).",
    "to_iterable_dataset": "Write DataLoader(ds).",
    "to_list": "Write list(ds).",
    "to_pandas": "Iterate over it: list(ds).",
    "train_test_split": _SPLIT,
    "transform": "Write .map(f).",
    "with_format": _NUMPY,
    "with_options": _RUN,
    "with_transform": "Write .map(f).",
}

_CHAIN = "It is a stage of the dataset."

LOADER = {
    "batch_size": f"{_CHAIN} loader.dataset shows the chain.",
    "get_state": _STATE,
    "load_state_dict": _STATE,
    "next": "Write it = iter(loader), then next(it).",
    "num_workers": "loader.stats() says which engine runs, and with how many workers.",
    "prefetch": "Write DataLoader(ds, prefetch=n).",
    "reset": "Write iter(loader), which begins the next epoch, or loader.epoch(0).",
    "sampler": f"{_CHAIN} loader.dataset shows the chain.",
    "seek": "A position belongs to an iterator: it = iter(loader), then it.seek(step).",
    "set_epoch": "Every loop over a loader is its next epoch; loader.epoch(e) is epoch e.",
    "set_state": "A position belongs to an iterator: it = iter(loader), then it.set_state(state).",
    "shutdown": "Write loader.close().",
    "state_dict": _STATE,
    "step": "A position belongs to an iterator: it = iter(loader), then it.step.",
    **{
        stage: f"{_CHAIN} Write DataLoader(ds.{stage}(...))."
        for stage in ("batch", "filter", "map", "repeat", "shuffle", "skip", "take")
    },
}

ITERATOR = {
    "get_next": "Write next(it).",
    "get_next_as_optional": "Write next(it, None).",
    "records": "Write loader.records(step).",
    "reset": "Write it.seek(0).",
}

MODULE = {
    "BatchSampler": "Write Dataset.from_source(data).batch(n).",
    "ConcatDataset": "Write Dataset.concatenate(a, b).",
    "IterDataset": _ITERABLE,
    "IterableDataset": _ITERABLE,
    "MapDataset": "Write Dataset.from_source(source).",
    "RandomSampler": "Write Dataset.from_source(data).shuffle(seed).",
    "Subset": "Write Dataset.from_source(data)[indices].",
    "TensorDataset": "Write Dataset.from_arrays(x, y).",
    "WeightedRandomSampler": "Write Dataset.from_source(data).sample(weights, n).",
    "concatenate_datasets": "Write Dataset.concatenate(a, b).",
    "default_collate": ".batch(n) stacks records; collate_fn= replaces it.",
    "interleave_datasets": _MIX,
    "load_dataset": (
        "Dataset.open(path) reads its files, Dataset.from_source(datasets.load_dataset(...)) takes "
        "what it gives."
    ),
    "load_from_disk": _OPEN,
    "random_split": _SPLIT,
}

_LEAVE = "Leave it out"
_SEED = "Write seed=0, or another number: draws and orders depend on the seed alone."
_ORDER = (
    "The order is part of the dataset: .shuffle(seed), ds[indices] (any order, with repeats), "
    ".sample(weights), or Dataset.mix([a, b], weights) for proportions. "
    "loaderx.compat.torch.DataLoader takes samplers of torch."
)
_WORKERS = "Workers are an option of running: DataLoader(ds, num_workers=...)."
_DROP = "Write drop_remainder=True."
_WHOLE = (
    "takes a seed and no buffer size: it shuffles the whole dataset, without a buffer. Write "
    ".shuffle(seed=0), or .shuffle(seed=0, window=n) to stay within runs of n records."
)

LEAST_BUFFER = 1000  # a number that is more likely a buffer than a seed

_BILINEAR = f'{_LEAVE}: images are resized with antialiasing, method="bilinear" or "area".'

KEYWORDS = {
    "antialias": _BILINEAR,
    "batch_sampler": _ORDER,
    "buffer_size": f"{_LEAVE}: .shuffle {_WHOLE}",
    "collate_fn": "Write Dataset.from_source(data).batch(n, collate_fn=f).",
    "count": "Write .take(n), .skip(n) or .repeat(num_epochs).",
    "data_source": "Write DataLoader(dataset), where Dataset.from_source(data) makes one.",
    "deterministic": f"{_LEAVE}: the order never depends on workers.",
    "device": "Write DataLoader(ds, sharding=device).",
    "drop_last": _DROP,
    "drop_last_batch": _DROP,
    "epochs": "Write num_epochs.",
    "fn_kwargs": "Write .map(functools.partial(f, ...)).",
    "function": "Write it without a name, .map(f).",
    "generator": _SEED,
    "in_order": f"{_LEAVE}: batches are always in order.",
    "input_columns": "f gets the whole record, such as a dict.",
    "interpolation": _BILINEAR,
    "map_func": "Write it without a name, .map(f).",
    "multiprocessing_context": 'Write engine="processes".',
    "n": "Write batch_size, or the number alone: .batch(32).",
    "num_parallel_calls": _WORKERS,
    "num_proc": _WORKERS,
    "num_threads": 'Write engine="threads", num_workers=...',
    "operations": "Write Dataset.from_source(data).apply([...]), and DataLoader of that.",
    "p": "Write probability.",
    "padded_shapes": _PAD,
    "padding_values": "Write pad_value.",
    "persistent_workers": f"{_LEAVE}: loader.close() is what stops the workers.",
    "pin_memory": f"{_LEAVE}; sharding=jax.devices()[0] puts batches on a device ahead of use.",
    "pin_memory_device": f"{_LEAVE}; sharding=jax.devices()[0] puts batches on a device.",
    "predicate": "Write it without a name, .filter(f).",
    "prefetch_factor": "Write prefetch=n, the batches kept ready by all workers together.",
    "random_seed": "Write seed.",
    "random_state": "Write seed.",
    "read_options": "Write num_workers=... and prefetch=...",
    "remove_columns": "Return the leaves to keep: .map(f) replaces the record.",
    "reshuffle_each_iteration": f"{_LEAVE}: every epoch has a new order.",
    "rng": _SEED,
    "sampler": _ORDER,
    "shard_options": "Write shard=(index, count).",
    "timeout": (
        f"{_LEAVE}: the failure of a worker is raised in your loop. The time after which a "
        "slow batch is reported is engine=engines.Processes(timeout_s=...)."
    ),
    "transforms": "Write transform=f, a function of a batch, or put .map(f) into the dataset.",
    "with_indices": "Write .map_with_index(f), where f(index, element).",
    "worker_buffer_size": "Write prefetch=n, the batches kept ready by all workers together.",
    "worker_count": "Write num_workers.",
    "worker_init_fn": (
        "Random numbers belong to records (.random_map), and need no seeds in workers. For other "
        "things, write engine=engines.Processes(init=f), with f(index, count)."
    ),
}

IN = {  # names whose advice depends on the method
    (
        "filter",
        "batch_size",
    ): f"{_LEAVE}: batched=True gets runs of records, and loaderx cuts them.",
    (
        "epoch",
        "positional",
    ): "Write loader.epoch(e), where e is the number of the epoch.",
    ("filter", "function"): "Write it without a name, .filter(f).",
    ("map", "batch_size"): f"{_LEAVE}: batched=True gets runs of records, and loaderx cuts them.",
    ("repeat", "count"): "Write num_epochs, or the number alone: .repeat(3).",
    ("repeat", "epochs"): "Write num_epochs, or the number alone: .repeat(3).",
    ("shuffle", "seed"): f".shuffle {_WHOLE}",
    ("skip", "count"): "Write n, or the number alone: .skip(10).",
    ("take", "count"): "Write n, or the number alone: .take(10).",
    ("unbatch", "positional"): "For batches of another size write .unbatch().batch(n).",
    ("__init__", "positional"): "Arguments have names: DataLoader(dataset, batch_size=32).",
    ("shuffle", "positional"): f".shuffle {_WHOLE}",
    ("open", "as_supervised"): 'Write Dataset.open(...).map(lambda r: (r["image"], r["label"])).',
    (
        "open",
        "channels",
    ): "For images write Dataset.from_source(loaderx.sources.ImageFolder(path, channels=...)).",
    ("open", "data_dir"): "Write the whole path: Dataset.open(folder, split=...).",
    ("open", "data_files"): "Write the files as path: a pattern, or a list.",
    ("open", "delimiter"): "Write Dataset.from_source(loaderx.sources.Csv(path, delimiter=...)).",
    ("open", "keys"): "Write columns=[...].",
    ("open", "positional"): 'Options have names: Dataset.open(path, split="train").',
    ("open", "sep"): "Write Dataset.from_source(loaderx.sources.Csv(path, delimiter=...)).",
    ("open", "streaming"): f"{_LEAVE}: files are mapped, and read where they are needed.",
    ("batch", "positional"): "Options have names: .batch(32, drop_remainder=True).",
    ("mix", "positional"): _MIX,
    ("split", "test_size"): _SPLIT,
    ("window", "sampling_rate"): "Write gap=sampling_rate - 1: the records left out between two.",
    ("window", "shift"): "Write stride=shift.",
}


def attribute_error(kind: str, words: dict[str, str], name: str, obj: object) -> AttributeError:
    """For a name that ``obj`` does not have; Python adds "Did you mean" from ``obj`` itself."""
    text = f"{kind} has no attribute {name!r}"
    if name in words:
        text += f". {words[name]}"
    return AttributeError(text, name=name, obj=obj)


def advised(function: Callable[P, R]) -> Callable[P, R]:
    """The function; arguments that it does not take are an error that says what to write."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # No frame below this one: the function never began, its arguments did not fit.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise ArgumentTypeError(_explain(function, str(error))) from None

    return call


def no_buffer(function: Callable[P, R]) -> Callable[P, R]:
    """The method, with a warning for a lone number, which tf.data takes as a buffer size."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) == 2 and not kwargs and type(args[1]) is int and args[1] >= LEAST_BUFFER:
            warn_user(
                f".shuffle({args[1]}) {_WHOLE} If {args[1]} is meant as a seed, write "
                f".shuffle(seed={args[1]})."
            )
        return function(*args, **kwargs)

    return call


def _explain(function: Callable[..., object], problem: str) -> str:
    name = function.__name__
    problem = problem.partition(". Did you mean")[0]  # Python 3.13 says it too, without our words
    found = re.search(r"(?:unexpected keyword argument|values for argument) '(\w+)'", problem)
    word = found[1] if found else "positional" if "positional argument" in problem else ""
    advice = IN.get((name, word)) or KEYWORDS.get(word)
    if advice is None:
        from difflib import get_close_matches  # slow to import, and rarely needed

        code = function.__code__
        takes = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        names = [one for one in takes if one != "self"]
        advice = f"It takes {', '.join(names)}."
        if meant := get_close_matches(word, names, 1):
            advice = f"Did you mean {meant[0]!r}? {advice}"
    return f"{problem.replace('.__init__()', '()').rstrip('.')}. {advice}"


if TYPE_CHECKING:
    # With these classes, a type checker would accept every name, and not know `staticmethod`.
    DatasetType = type
    joins = staticmethod
else:

    class DatasetType(type):
        """The class of `Dataset`: advice for names that it, or a dataset, does not have."""

        def __init__(cls, name, bases, namespace):
            super().__init__(name, bases, namespace)

            def of_instance(self, name):
                raise attribute_error(f"a {cls.__name__}", DATASET, name, self)

            cls.__getattr__ = of_instance

        def __getattr__(cls, name):
            raise attribute_error(cls.__name__, DATASET, name, cls)

    class joins(staticmethod):  # noqa: N801 (a decorator)
        """A static method that joins datasets.  Called on a dataset, it would ignore that one."""

        def __get__(self, instance, owner=None):
            function = super().__get__(instance, owner)
            return function if instance is None else functools.partial(_refuse, function.__name__)


def _refuse(name: str, *datasets: object, **options: object) -> None:
    raise ArgumentTypeError(
        f"`{name}` is called on the class, with all datasets: Dataset.{name}([a, b]), not "
        f"a.{name}(b)."
    )
