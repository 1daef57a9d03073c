"""Where rows come from: epochs, permutations and mixing tables, as pure functions on arrays.

Nothing here knows datasets.  A row is an address: an epoch key (`loaderx.rng.Keys`) and a position.
"""
