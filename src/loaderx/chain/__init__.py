"""The grammar of a chain: what a node is, how it is described, checked and read as a stream.

The stages themselves are in `loaderx.stages`.
"""
