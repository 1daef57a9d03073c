"""A configuration that nothing reads: programs set it, and go on."""

from __future__ import annotations

from loaderx.errors import ArgumentError

_DEFAULTS: dict[str, object] = {
    "py_dataset_visualization_output_dir": None,
    "py_debug_mode": False,
    "py_relay_sigterm_to_main": False,
    "py_traceback_filtering": "auto",
    "tf_interleaved_shuffle": False,
    "tf_interleaved_shuffle_block_size": 10,
    "tf_interleaved_shuffle_parallel_blocks": 10,
    "tf_lookup_batch_size": 100,
    "tf_lookup_fast_warmup": False,
    "tf_lookup_num_parallel_calls": -1,
    "tf_optimized_sequential_read": False,
    "tf_prefetch_buffer_size": -1,
}


class Config:
    """Keeps what it is told: ``config.update("py_debug_mode", True)``, ``config.py_debug_mode``."""

    def __getattr__(self, name: str) -> object:
        return self.get_or_default(name)

    def __setattr__(self, name: str, value: object) -> None:
        raise ArgumentError(f"write config.update({name!r}, {value!r}).")

    def update(self, name: str, value: object) -> None:
        """Sets a value, which has no effect."""
        self.get_or_default(name)
        vars(self)[name] = value

    def get_or_default(self, name: str) -> object:
        """A value that was set, or Grain's default."""
        if name not in _DEFAULTS:
            raise ArgumentError(f"Grain has no option {name!r}; it has {', '.join(_DEFAULTS)}.")
        return vars(self).get(name, _DEFAULTS[name])


config = Config()
