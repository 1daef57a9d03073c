"""The house: imports point downward only, and importing loaderx is light."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import loaderx

ROOT = Path(loaderx.__file__).parent

# From the top down.  A module may import from rows below its own, and from its own package.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"commands"},
    {"viewer"},
    {"demo"},
    {"testing", "compat"},
    {"extend"},
    {"loader"},
    {"jax"},
    {"engines", "dataset"},
    {"plans"},
    {"stages"},
    {"chain"},
    {"reading", "image", "survey", "text"},
    {"sources", "order"},
    {"gathering", "memory", "rng", "display"},
    {"tree_prefix"},
    {"tree"},
    {"hints", "installed"},
    {"errors", "free_memory", "first_use", "frozen", "locks"},
]

# The same for the packages and modules of `sources`.
SOURCE_LAYERS = [
    {"open"},
    {"formats"},
    {"native"},
    {"columns"},
    {"adapt"},
    {"format"},
    {"cache"},
    {"files"},
    {"remote"},
    {"decoding"},
    {"audio", "images", "mapping", "progress"},
    {"base"},
]


def layer(name, layers=LAYERS):
    for number, names in enumerate(layers):
        if name in names:
            return number
    raise AssertionError(f"{name} is in no layer")


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts != ("__init__",):
            yield parts[0], path


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("loaderx"):
            inner = (node.module or "").split(".")[1:]
            names = [inner[0]] if inner else [alias.name for alias in node.names]
            yield from ((name, node) for name in names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("loaderx."):
                    yield alias.name.split(".")[1], node


@pytest.mark.parametrize(("own", "path"), list(modules()), ids=lambda v: getattr(v, "name", v))
def test_imports_point_downward(own, path):
    for name, _ in imported(path):
        if name == own or (layer(own) < layer("loader") and name in loaderx.__all__):
            continue  # the programs on top use what users use
        assert layer(name) > layer(own), f"{path} imports {name}, which is not below it"


def imported_of_sources(path):
    """What a file imports of `sources`: the names of its packages and modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("loaderx.sources"):
            inner = (node.module or "").split(".")[2:]
            yield from [inner[0]] if inner else [alias.name for alias in node.names]


# Upward, and late: an object of a user's that turns out to be a dataset of Hugging Face's.
UPWARD = {("adapt/objects.py", "formats")}


def test_imports_within_sources_point_downward():
    root = ROOT / "sources"
    for path in sorted(root.rglob("*.py")):
        below = path.relative_to(root)
        own = below.with_suffix("").parts[0]
        if own == "__init__":
            continue
        for name in imported_of_sources(path):
            if name != own and (below.as_posix(), name) not in UPWARD:
                lower = layer(name, SOURCE_LAYERS) > layer(own, SOURCE_LAYERS)
                assert lower, f"{path} imports {name}, which is not below it"


def test_only_one_package_imports_jax():
    for own, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == "jax" for name in names):
                assert own in {"jax", "demo"}, path


def added_modules():
    """What `import loaderx` imports beyond NumPy."""
    script = (
        "import sys, numpy; before = {*sys.modules}\n"
        "import loaderx; print(*{*sys.modules} - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


# Modules that many programs never need, and most only after the first batch.
LATE = {
    "loaderx.engines.auto.session",
    "loaderx.engines.raised_ahead",
    "loaderx.engines.shared_engine",
    "loaderx.engines.threads.session",
    "loaderx.loader.fetch_ahead",
    "loaderx.loader.save.saving",
    "loaderx.loader.tasks.ranges",
    "loaderx.loader.tasks.units",
    "loaderx.stages.narrow",
    "loaderx.tree_prefix",
    "loaderx.engines.signals",
    "loaderx.image",
    "loaderx.text",
    "loaderx.jax",
    "loaderx.loader.stream_iterator",
    "loaderx.plans.stream_plan",
    "loaderx.sources.files.cold",
    "loaderx.sources.adapt.h5_datasets",
    "loaderx.sources.adapt.iterables",
    "loaderx.sources.adapt.kept_chunks",
    "loaderx.sources.mapping",
    "loaderx.sources.adapt.tokens",
    "loaderx.stages.filter",
    "loaderx.stages.on_error",
}
SLOW = {"copy", "json", "logging", "mmap", "multiprocessing", "numpy.typing", "queue", "signal"}
MOST_MODULES = 92  # each takes about a quarter of a millisecond


def test_importing_loaderx_is_light():
    loaded = added_modules()
    heavy = {"jax", "flax", "torch", "tensorflow", "h5py", "zarr", "cloudpickle"}
    assert not loaded & (heavy | SLOW | LATE), "import them where they are used, and say why there"
    own = {name for name in loaded if name.partition(".")[0] == "loaderx"}
    assert len(own) <= MOST_MODULES, "what few programs need is imported when it is first used"
    outside = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert {name for name in outside if not name.startswith(("_", "sitecustomize"))} <= {
        "loaderx", "numpy", "__main__", "cython_runtime", "mpl_toolkits", "google",
    }  # fmt: skip


def test_modules_that_are_imported_late_exist():
    for name in LATE:
        path = ROOT.parent.joinpath(*name.split("."))
        assert path.is_dir() or path.with_suffix(".py").exists(), name


def public():
    for name in loaderx.__all__:
        thing = getattr(loaderx, name)
        if inspect.isclass(thing):
            yield name, thing
            if not issubclass(thing, Exception):
                for method, value in vars(thing).items():
                    if not method.startswith("_") and callable(getattr(thing, method)):
                        yield f"{name}.{method}", value


@pytest.mark.parametrize(
    ("name", "thing"), list(public()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_everything_public_is_documented_and_typed(name, thing):
    function = getattr(thing, "__func__", thing)
    assert inspect.getdoc(function), f"{name} has no docstring"
    if inspect.isfunction(function):
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name != "self":
                assert parameter.annotation is not inspect.Parameter.empty, name


def test_the_package_is_typed():
    assert (ROOT / "py.typed").exists()


def test_who_has_no_stream_does_not_import_how_they_run():
    script = (
        "import sys, loaderx\n"
        "loaderx.DataLoader(loaderx.Dataset.range(9).shuffle(window=3).batch(2))\n"
        "late = ('loaderx.plans.stream_plan', 'loaderx.stages.pack_rows')\n"
        "print([m for m in sys.modules if m in late])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
