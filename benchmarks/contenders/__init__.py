"""The contenders, one file each.

A module has:

- ``TITLE``, and ``REQUIREMENTS`` for its environment (None: the environment of `run.py`),
- optionally ``PYTHON``, the version that its environment needs, as "3.12",
- ``VERSIONS``, the packages whose versions are reported,
- ``WAYS``: for each workload's function, its variants and what each of them does,
- ``CANNOT``: for the others, why not (none at all: it is left out of them),
- ``begin()``, called once before any clock: the heavy imports,
- ``note()``, what was chosen by itself, if anything,
- optionally ``prepare(job)``, which writes the data in a form of its own before anything runs;
  ``OWN_FILES``, the workloads where it then reads these and no arrays in memory; and
  ``warm(job)``, which lets it compile what depends on the number of records,
- ``OWN_DECODER``, the variants whose pixels differ a little from those of the reference,
- a function for each workload, which makes the loader and yields its batches, all epochs, as
  dicts of arrays that `numpy.asarray` takes without a copy.  For ``resume`` these are
  ``stream(job)``, ``save(job, step, folder)`` and ``restore(job, step, folder)``.

"defaults" is what the library's first page shows.  "best" is the fastest that its documentation
offers for two cores, whatever it takes, as long as the batches are the same.
"""

NAMES = (
    "numpy_by_hand",
    "jax_by_hand",
    "loaderx_",
    "torch_",
    "grain_loader",
    "grain_map",
    "tf_data",
    "hf_datasets",
    "jax_dataloader_",
    "cyreal_",
    "deeplake_",
    "webdataset_",
    "mosaic_",
    "spdl_",
    "datarax_",
)
