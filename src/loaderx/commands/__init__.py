"""The commands of ``loaderx``, one file each."""
