"""The grammar of a chain: nodes, their description, their checks, and how streams are built.

The stages themselves are in `loaderx.stages`.
"""
